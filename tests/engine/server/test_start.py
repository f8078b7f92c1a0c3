"""`python -m engine` with the real model: the whole start, a greedy answer that makes sense, a clean stop."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from contracts.generate import Tokens
from support.engine_http import EngineCall, call, wait_until_ready
from support.tiny_engine import make_request

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWrite a Python function that reverses a string.<|im_end|>\n<|im_start|>assistant\n"
)
SERVICES = Path(__file__).resolve().parents[3] / "services"


@pytest.mark.weights
def test_the_engine_starts_answers_and_stops(smollm2_folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    prompt = tokenizer.encode(CHAT, add_special_tokens=False).ids
    ours = ("ENGINE_", "OTEL_", "OPENBLAS_", "OMP_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PYTHONPATH": str(SERVICES), "ENGINE_PORT": str(port), "SOLOIST_HOME": str(smollm2_folder.parent.parent)}
    with subprocess.Popen([sys.executable, "-m", "engine"], env=env, stderr=subprocess.PIPE, text=True) as child:
        try:
            wait_until_ready(port, timeout_s=120)
            environ = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
            assert b"OPENBLAS_NUM_THREADS=1" in environ, "the server runs in this process, with its settings"
            with EngineCall(port, make_request(prompt, 120, sampling={"temperature": 0.0})) as generation:
                events = generation.read_to_end()
            ids = [token_id for event in events if isinstance(event, Tokens) for token_id in event.ids]
            answer = tokenizer.decode(ids)
            assert "def " in answer and "[::-1]" in answer and ids[-1] == 2
            assert call(port, "GET", "/v1/info")[1]["model_id"] == "smollm2-135m"
            child.send_signal(signal.SIGTERM)
            _, log = child.communicate(timeout=30)
        finally:
            child.kill()
    assert child.returncode == 0 and "Traceback" not in log
