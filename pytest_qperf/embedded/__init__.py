"""The embedded engine: a Qwen2 decoder in NumPy behind an OpenAI-compatible server.

Started as a process of its own: ``python -m pytest_qperf.embedded``. This module imports nothing,
because the number of BLAS threads must be set before NumPy is loaded.
"""
