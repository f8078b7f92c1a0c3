"""`python -m engine.models [--json]`: what is supported and what is on disk. Owns the listing, changes nothing."""

import argparse
import sys
from pathlib import Path

import msgspec

from contracts.errors import SetupError
from contracts.settings import resolve_home
from engine.model_home import folder_path, open_folder
from engine.registry import (
    DEFAULT_MODEL,
    BundledSource,
    HubSource,
    PackageSource,
    RegisteredModel,
    lookup,
    supported_names,
)
from engine.settings import read_environment
from engine.weights.reserve import recipe_bytes


class ModelRow(msgspec.Struct, frozen=True):
    """One model: bytes is its size on disk, or what its weights will take; fault says why a folder is not whole."""

    name: str
    default: bool
    present: bool
    bytes: int
    family: str
    context_limit: int
    license: str
    source: str
    path: str
    fault: str | None


class Listing(msgspec.Struct, frozen=True):
    """The JSON document of --json."""

    home: str
    models: list[ModelRow]


def list_models(home: Path) -> Listing:
    """Every registered model with the state of its folder; sizes are compared, digests are not."""
    return Listing(str(home), [_row(lookup(name), home) for name in supported_names()])


def _row(model: RegisteredModel, home: Path) -> ModelRow:
    spec, path = model.spec, folder_path(home, model.spec.name)
    present, num_bytes, fault = False, _expected_bytes(model), None
    if path.exists():
        try:
            folder = open_folder(home, spec.name)
            present, num_bytes = True, folder.num_bytes
        except SetupError as error:
            fault = error.message
    return ModelRow(
        name=spec.name,
        default=spec.name == DEFAULT_MODEL,
        present=present,
        bytes=num_bytes,
        family=spec.family,
        context_limit=spec.context_limit,
        license=model.source.license,
        source=_describe_source(model),
        path=str(path),
        fault=fault,
    )


def _expected_bytes(model: RegisteredModel) -> int:
    """What the weights take once they are here."""
    return (
        model.source.file_bytes if isinstance(model.source, PackageSource) else recipe_bytes(model.spec, model.recipe)
    )


def _describe_source(model: RegisteredModel) -> str:
    match model.source:
        case PackageSource() as source:
            return f"{source.package}=={source.version}"
        case HubSource() as source:
            return f"hub:{source.repository}"
        case BundledSource() as source:
            return f"bundled:{source.folder}"


def _render(listing: Listing) -> str:
    lines = [f"models in {listing.home}"]
    for row in listing.models:
        state = "present" if row.present else ("damaged" if row.fault else "absent")
        mark = " (default)" if row.default else ""
        lines.append(
            f"  {row.name}{mark}: {state}, {row.bytes / 1e6:.0f} MB, context {row.context_limit}, {row.license}"
        )
        if row.fault:
            lines.append(f"    {row.fault}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code, always 0."""
    parser = argparse.ArgumentParser(prog="engine.models", description="List supported models and what is on disk.")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    listing = list_models(resolve_home(read_environment()))
    text = msgspec.json.encode(listing).decode() + "\n" if options.json else _render(listing)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
