"""Plain totals of one engine, for tests and benchmarks: exact, and read without a registry."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since start. prefill_tokens: prompt and cache tokens whose forward ran; a hit adds its suffix only.

    The peaks are of what requests take beside the arena. Each is kept: an allocator seldom gives memory back.
    """

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    peak_tail_bytes: int = 0
    peak_logit_bytes: int = 0
    peak_workspace_bytes: int = 0

    def forget_peaks(self) -> None:
        self.peak_tail_bytes = self.peak_logit_bytes = self.peak_workspace_bytes = 0

    @property
    def peak_request_bytes(self) -> int:
        return self.peak_tail_bytes + self.peak_logit_bytes + self.peak_workspace_bytes
