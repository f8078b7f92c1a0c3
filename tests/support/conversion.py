"""Conversions by call, quiet and on one thread, and what their folders say."""

import io
from pathlib import Path

from contracts.model_folder import ARTIFACT_DIRECTORY_NAME
from engine.convert.conversion import ConversionJob, convert
from engine.model_home import ModelFolder
from engine.progress import ProgressLine
from engine.spec import ModelSpec, RecipeName
from engine.weights.artifact import ArtifactDirectory, read_directory


def convert_quietly(source: Path, out: Path, recipe: RecipeName = "balanced", threads: int = 1) -> ModelFolder:
    return convert(ConversionJob(source, out, out.name, recipe, threads), ProgressLine(io.StringIO()))


def directory_of(folder: ModelFolder) -> ArtifactDirectory:
    return read_directory(folder.path / ARTIFACT_DIRECTORY_NAME)


def spec_of(folder: ModelFolder) -> ModelSpec:
    return directory_of(folder).spec
