"""`python -m engine.convert SRC --out DIR`: a checkpoint becomes an artifact. Owns arguments, signals and exit codes.

Exit codes: 0 the folder is whole; 1 it could not be finished, what is done is kept and the same command goes on; 2 the
checkpoint is refused. Progress and errors go to stderr.
"""

import argparse
import sys
from pathlib import Path

from contracts.errors import SetupError
from contracts.model_folder import ARTIFACT_DIRECTORY_NAME
from engine.convert.centring import NotCentred, centre, is_centred, needs_centres
from engine.convert.conversion import ConversionJob, convert, count_kept, partial_folder
from engine.machine import usable_cpus
from engine.model_home import ModelFolder, read_folder
from engine.progress import ProgressLine
from engine.unwind import unwind_on_signals
from engine.weights.artifact import read_directory
from engine.weights.recipe import RECIPE_NAMES

OK, FAILED, REFUSED = 0, 1, 2


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    out: Path = options.out.absolute()
    progress = ProgressLine(sys.stderr)
    job = ConversionJob(options.source, out, options.name or out.name, options.recipe, options.threads)
    try:
        folder = _present(job) if out.exists() else convert(job, progress)
        spec = read_directory(folder.path / ARTIFACT_DIRECTORY_NAME).spec
        if needs_centres(folder, spec) or (options.calibrate and not is_centred(folder)):
            folder = centre(folder, progress)
    except SetupError as error:
        return _end(progress, REFUSED, error.message)
    except OSError as error:
        return _end(progress, FAILED, f"cannot write {partial_folder(out)}: {error.strerror or error}{_kept(out)}")
    except NotCentred as error:
        return _end(progress, FAILED, str(error))
    except KeyboardInterrupt:
        return _end(progress, FAILED, f"converting to {out} was interrupted{_kept(out)}")
    if options.verify:
        progress.note(f"verifying {folder.path}")
        try:
            folder.verify_digests()
        except SetupError as error:
            return _end(progress, FAILED, error.message)
    return _end(progress, OK, f"{folder.manifest.name} is in {folder.path} ({folder.num_bytes} bytes)")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="engine.convert", description="Convert a checkpoint for the engine.")
    parser.add_argument("source", metavar="SRC", type=Path, help="a folder with config.json, or a .gguf file")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the model folder to make")
    parser.add_argument("--recipe", choices=RECIPE_NAMES, default="balanced", help="bits per matrix (balanced)")
    parser.add_argument("--name", help="the model's name (DIR's last part); a supported one must be that model")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="centre the KV cache (done anyway where the default KV format is)",
    )
    parser.add_argument("--verify", action="store_true", help="read DIR again and compare every digest")
    parser.add_argument(
        "--threads", type=int, default=usable_cpus().value, help="threads that encode (the CPUs this process may use)"
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: at least 1")
    return options


def _present(job: ConversionJob) -> ModelFolder:
    """The folder that is there already, when it is what the job would make."""
    try:
        folder = read_folder(job.out)
        recipe = read_directory(job.out / ARTIFACT_DIRECTORY_NAME).recipe
    except SetupError as error:
        raise SetupError(f"{job.out} is there and is no whole artifact, remove it first: {error.message}") from error
    if (folder.manifest.name, recipe) != (job.name, job.recipe):
        raise SetupError(f"{job.out} is there and holds {folder.manifest.name} with recipe {recipe}; remove it first")
    return folder


def _kept(out: Path) -> str:
    count = count_kept(out)
    return f"; {count} finished parts are kept in {partial_folder(out)}, the same command goes on" if count else ""


def _end(progress: ProgressLine, code: int, message: str) -> int:
    progress.close()
    sys.stderr.write(message + "\n")
    return code


if __name__ == "__main__":
    unwind_on_signals()
    sys.exit(main(sys.argv[1:]))
