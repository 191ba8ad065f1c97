"""The pytest plugin's entry point: options and hooks.

This module is imported in every pytest run of every project it is installed in, so it loads
pytest and the standard library only. The rest is imported once ``--qperf`` is given.
"""

import pytest

from pytest_qperf.options import QperfOptions, add_options, refuse_incompatible_plugins


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, register the marker and the fixtures, and start what a gate run needs."""
    config.addinivalue_line(
        "markers", 'qperf(gate="NAME"): which gate the qperf fixtures of a test are about'
    )
    config.pluginmanager.import_plugin("pytest_qperf.fixtures")
    options = QperfOptions.from_pytest_config(config)
    if options.is_active:
        refuse_incompatible_plugins(config)
        from pytest_qperf.gate_session import GatePlugin

        config.pluginmanager.register(GatePlugin(options), "qperf-gates")
