"""What a cache is bound to: a model that gives the same KV for the same text, to the bit of its weights.

Two digests, `<tokenizer and template>:<weights and config>`. Where only the second differs, a cache's tokens are still
right and it can be rebuilt; where the first differs, they are not.
"""

import hashlib
import json
from pathlib import Path

from prompting.format import PromptFormat
from prompting.model_files import read_json
from workers.engine.loading.digests import DigestCache
from workers.engine.loading.progress import Progress, silent
from workers.engine.loading.weights import weight_files

# Who wrote the file, and how a model is run: nothing that the weights mean.
_INCIDENTAL = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def fingerprint(
    folder: Path, prompt_format: PromptFormat, *, digests: DigestCache, progress: Progress = silent
) -> str:
    """Give the fingerprint of the model in `folder`; its weights are read only where they are not known yet."""
    config = {
        name: value for name, value in read_json(folder / "config.json").items() if name not in _INCIDENTAL
    }
    weights = [digests.sha256(path, progress) for path in weight_files(folder)]
    content = json.dumps([config, weights], sort_keys=True)
    return f"{prompt_format.digest}:{hashlib.sha256(content.encode()).hexdigest()}"
