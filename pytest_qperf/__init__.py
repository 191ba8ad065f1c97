"""A pytest gate for LLM inference engines: build candidate and baseline, measure both, judge."""

__version__ = "0.1.0"

__all__ = ["__version__"]
