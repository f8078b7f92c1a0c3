"""The home folder: explicit choice first, then the cache folder of the desktop convention, then the default."""

from pathlib import Path

import pytest

from contracts.home import resolve_home


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"SOLOIST_HOME": "/data/s", "XDG_CACHE_HOME": "/x"}, Path("/data/s")),
        ({"SOLOIST_HOME": "", "XDG_CACHE_HOME": "/x"}, Path("/x/soloist")),
        ({"XDG_CACHE_HOME": "relative"}, Path("~/.cache/soloist").expanduser()),
        ({}, Path("~/.cache/soloist").expanduser()),
        ({"SOLOIST_HOME": "here"}, Path.cwd() / "here"),
        ({"SOLOIST_HOME": "~/s"}, Path("~/s").expanduser()),
    ],
)
def test_resolve_home_order(environ: dict[str, str], home: Path) -> None:
    assert resolve_home(environ) == home
