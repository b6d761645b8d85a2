"""Who takes part: the name of each contestant, where its code is, and whether this machine has what it needs."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

OURS, OURS_HTTP, OPENVINO = "headstart", "headstart-http", "openvino"
GENERATE, BATCHING, LLAMA = "transformers", "transformers-batching", "llama-server"


@dataclass(frozen=True, slots=True)
class Entry:
    """factory: module:name of a callable that makes the contestant. is_here: asked before it is started."""

    factory: str
    title: str
    is_here: Callable[[], bool] = lambda: True


ROSTER = {
    OURS: Entry("bench.contestants.in_process:InProcess", "Headstart, in process"),
    OURS_HTTP: Entry("bench.contestants.http:OverHttp", "Headstart, HTTP and google-genai"),
    OPENVINO: Entry(
        "bench.contestants.openvino:OpenVino",
        "OpenVINO GenAI, prefix caching",
        lambda: find_spec("openvino_genai") is not None,
    ),
    GENERATE: Entry(
        "bench.contestants.transformers_generate:CopiedCache", "transformers, generate with a copied cache"
    ),
    BATCHING: Entry("bench.contestants.transformers_batching:Batching", "transformers, continuous batching"),
    LLAMA: Entry(
        "bench.contestants.llama_server:LlamaServer",
        "llama-server, HTTP",
        lambda: shutil.which("llama-server") is not None,
    ),
}
PEERS = (OPENVINO, GENERATE, BATCHING, LLAMA)


def installed_peers() -> list[str]:
    return [name for name in PEERS if ROSTER[name].is_here()]
