"""Debian packages as this machine already gets them: its mirror, installing, and fetching from another release.

Owns a private apt folder for the other release; the machine's own package lists stay as they are.
"""

from pathlib import Path

from e2e.compose.steps import StepFailed, Steps, Unavailable

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def find_mirror(steps: Steps) -> str:
    """The address of the Debian mirror in this machine's own apt configuration; raises Unavailable without one."""
    try:
        listing = steps.run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"])
    except (StepFailed, OSError) as error:
        raise Unavailable("no apt here: the local base image is built from Debian packages") from error
    for line in listing.splitlines():
        origin, _, address = line.partition(" ")
        if origin == "Debian" and "security" not in address:
            return address
    raise Unavailable("apt lists no Debian release (run apt-get update first, or pass --base and --redis images)")


def install_packages(steps: Steps, names: list[str]) -> None:
    """Install packages without what they only recommend; starts no service on a machine without systemd."""
    steps.environ["DEBIAN_FRONTEND"] = "noninteractive"
    try:
        steps.run(["apt-get", "update"])
        steps.run(["apt-get", "install", "--yes", "--no-install-recommends", *names])
    except (StepFailed, OSError) as error:
        raise Unavailable(f"apt-get cannot install {' '.join(names)}: {error}") from error


def unpack_from_release(steps: Steps, release: str, names: list[str], folder: Path) -> Path:
    """Download packages of another Debian release into folder and unpack them there without installing.

    Returns the root folder of the unpacked files.
    """
    mirror = find_mirror(steps)
    for part in ("lists/partial", "cache/archives/partial", "root"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {release} main\n", encoding="utf-8")
    options = [
        f"Dir::Etc::sourcelist={folder / 'sources.list'}",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={folder / 'lists'}",
        f"Dir::Cache={folder / 'cache'}",
        "APT::Sandbox::User=root",
    ]
    apt_get = ["apt-get", *[word for option in options for word in ("-o", option)]]
    try:
        steps.run([*apt_get, "update"])
        steps.run([*apt_get, "download", *names], cwd=folder)
        for package in sorted(folder.glob("*.deb")):
            steps.run(["dpkg-deb", "-x", package, folder / "root"])
    except (StepFailed, OSError) as error:
        raise Unavailable(f"cannot get {' '.join(names)} of Debian {release}: {error}") from error
    return folder / "root"
