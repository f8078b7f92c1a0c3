"""Says at the end of a run that the containers were not tested: a skipped letter among dots is easily overlooked."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reason of every container test that was skipped because Docker cannot be started."""
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and "CONTAINERS NOT TESTED" in report.longrepr[2]:
            terminalreporter.write_sep("!", "the container stack was not tested", red=True, bold=True)
            terminalreporter.write_line(report.longrepr[2])
