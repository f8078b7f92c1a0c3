"""The `soloist` command with small programs in the place of the services; runs by path."""

import sys
from pathlib import Path

from launcher.cli import main
from launcher.environment import InstallTools
from launcher.programs import Programs
from launcher.settings import LauncherSettings

SUPPORT = Path(__file__).resolve().parent


def choose_fakes(_settings: LauncherSettings) -> Programs:
    def service(name: str) -> tuple[str, ...]:
        return (sys.executable, "-S", str(SUPPORT / "fake_service.py"), name)

    return Programs(
        launcher=(sys.executable, str(SUPPORT / "fake_soloist.py")),
        python=sys.executable,
        engine=service("engine"),
        gateway=service("gateway"),
        fetch=service("fetch"),
        models=service("models"),
        plan=service("plan"),
        redis=service("redis"),
    )


if __name__ == "__main__":
    installer = (sys.executable, str(SUPPORT / "fake_install.py"))
    tools = InstallTools(make_venv=(*installer, "venv"), pip=(*installer, "pip"), bytes_min=1_000_000)
    sys.exit(main(sys.argv[1:], choose=choose_fakes, tools=tools))
