import json
import shutil
from pathlib import Path

import pytest

from core.errors import InvalidArgument, ModelBroken, ModelUnsupported
from prompting.format import PromptFormat
from prompting.messages import Message
from tests.prompting.folders import byte_level, llama_3_folder, qwen_folder, write_folder

USER = Message("user", "Hello")
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a good folder, to be damaged."""
    return Path(shutil.copytree(folders["qwen"], tmp_path / "model"))


@pytest.mark.trap("T42")
class TestBOS:
    BOS = "<|begin_of_text|>"

    def bos_count(self, format_: PromptFormat, messages: list[Message]) -> int:
        return format_.prompt(messages).token_ids.count(self.bos_id(format_))

    def bos_id(self, format_: PromptFormat) -> int:
        found = format_._tokenizer.backend.token_to_id(self.BOS)
        assert found is not None
        return found

    def test_is_one_where_template_and_tokenizer_both_write_it(
        self, formats: dict[str, PromptFormat]
    ) -> None:
        assert self.bos_count(formats["llama-3"], [USER]) == 1

    def test_is_one_where_the_tokenizer_alone_writes_it(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"
        format_ = PromptFormat.load(llama_3_folder(tmp_path / "model", template))
        assert self.bos_count(format_, [USER]) == 1
        prefix = format_.prefix([USER])
        assert prefix.token_ids[0] == self.bos_id(format_)
        suffix = format_.suffix(prefix.text, [USER], [USER])
        assert prefix.token_ids + suffix == format_.prompt([USER, USER]).token_ids

    def test_is_one_where_a_caller_writes_another(self, formats: dict[str, PromptFormat]) -> None:
        assert self.bos_count(formats["llama-3"], [Message("user", self.BOS)]) == 1

    def test_is_none_where_the_configuration_says_so(self, tmp_path: Path) -> None:
        folder = llama_3_folder(tmp_path / "model", "{{ messages[0].content }}")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": False}))
        assert self.bos_count(PromptFormat.load(folder), [USER]) == 0

    def test_is_one_where_only_the_configuration_says_so(self, tmp_path: Path) -> None:
        config = {"bos_token": "<|bos|>", "add_bos_token": True}
        folder = write_folder(
            tmp_path / "model", byte_level(["<|bos|>"]), "{{ messages[0].content }}", config
        )
        assert PromptFormat.load(folder).encode("Hello")[0] == 0


class TestEndOfAnswer:
    def test_is_what_the_generation_config_says_and_the_tokenizers_own(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text('{"eos_token_id": [0, 17]}')
        (folder / "config.json").write_text('{"eos_token_id": 99}')
        assert PromptFormat.load(folder).eos_token_ids == (0, 2, 17)

    def test_is_what_the_model_config_says_where_there_is_no_other(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"eos_token_id": 99}')
        assert PromptFormat.load(folder).eos_token_ids == (2, 99)

    def test_of_the_built_in_model(self, built_in: PromptFormat) -> None:
        assert built_in.eos_token_ids == (2,)


class TestDigest:
    def test_is_the_same_for_the_same_files(self, folder: Path) -> None:
        assert PromptFormat.load(folder).digest == PromptFormat.load(folder).digest

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("chat_template.jinja", "assistant", "model"),
            ("tokenizer.json", '"NFC"', '"NFD"'),
            ("tokenizer_config.json", "<|im_end|>", "<|endoftext|>"),
        ],
    )
    def test_changes_with_what_changes_tokens(self, name: str, old: str, new: str, folder: Path) -> None:
        before = PromptFormat.load(folder).digest
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
        assert PromptFormat.load(folder).digest != before

    def test_does_not_change_with_what_does_not(self, folder: Path) -> None:
        before = PromptFormat.load(folder).digest
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 7}))
        assert PromptFormat.load(folder).digest == before


class TestDamagedFolder:
    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_a_missing_file_is_named(self, name: str, folder: Path) -> None:
        (folder / name).unlink()
        with pytest.raises(ModelBroken, match=f"has no {name}"):
            PromptFormat.load(folder)

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_a_file_cut_short_is_named(self, name: str, folder: Path) -> None:
        text = (folder / name).read_text()
        (folder / name).write_text(text[: len(text) // 2])
        with pytest.raises(ModelBroken, match=name):
            PromptFormat.load(folder)

    def test_a_file_of_another_kind_is_named(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").write_text("[]")
        with pytest.raises(ModelBroken, match="holds no JSON object"):
            PromptFormat.load(folder)

    def test_a_file_that_is_no_text_is_named(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ModelBroken, match=r"chat_template\.jinja cannot be read"):
            PromptFormat.load(folder)

    def test_a_missing_template_says_what_to_use(self, folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(ModelBroken, match="instruct or chat version"):
            PromptFormat.load(folder)

    def test_an_invalid_template_is_quoted(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{% for m in messages %}")
        with pytest.raises(ModelBroken, match="not valid: Unexpected end of template"):
            PromptFormat.load(folder)

    def test_an_unknown_decoder_is_named(self, tmp_path: Path) -> None:
        tokenizer = byte_level(["<|end|>"])
        tokenizer.decoder = None
        with pytest.raises(ModelUnsupported, match="decodes with nothing"):
            PromptFormat.load(write_folder(tmp_path / "model", tokenizer, PLAIN_TEMPLATE))


class TestTemplateInTheConfig:
    @pytest.mark.parametrize(
        "entry",
        [
            PLAIN_TEMPLATE,
            [{"name": "tool_use", "template": "no"}, {"name": "default", "template": PLAIN_TEMPLATE}],
        ],
    )
    def test_is_used_where_there_is_no_file(self, entry: object, tmp_path: Path) -> None:
        config = {"chat_template": entry}
        format_ = PromptFormat.load(write_folder(tmp_path / "model", byte_level(["<|end|>"]), None, config))
        assert format_.render([USER], add_generation_prompt=False) == "Hello<|end|>"


class TestBadText:
    def test_half_a_surrogate_pair_is_refused(self, built_in: PromptFormat) -> None:
        with pytest.raises(InvalidArgument, match="surrogate"):
            built_in.prompt([Message("user", "a\ud800b")])
        assert built_in.minimum_tokens([Message("user", "a\ud800b")]) == 1

    def test_a_template_that_fails_is_quoted(self, tmp_path: Path) -> None:
        template = "{{ messages[0].content + 1 }}"
        format_ = PromptFormat.load(write_folder(tmp_path / "model", byte_level([]), template))
        with pytest.raises(InvalidArgument, match="refuses these contents"):
            format_.prompt([USER])

    def test_no_contents_are_refused(self, built_in: PromptFormat) -> None:
        for action in (built_in.prompt, built_in.count):
            with pytest.raises(InvalidArgument, match="contents are empty"):
                action([])

    def test_a_control_token_that_is_also_plain_text_is_refused(self, tmp_path: Path) -> None:
        tokenizer = byte_level([])
        assert tokenizer.encode("hello").tokens == ["he", "llo"]
        tokenizer.add_special_tokens(["llo"])  # an ordinary entry of the vocabulary
        format_ = PromptFormat.load(write_folder(tmp_path / "model", tokenizer, PLAIN_TEMPLATE))
        with pytest.raises(InvalidArgument, match="'llo' is a control token"):
            format_.prompt([USER])


class TestMinimumTokens:
    @pytest.mark.parametrize("kind", ["built-in", "llama-2", "llama-3", "qwen"])
    def test_is_never_more_than_the_count(self, kind: str, formats: dict[str, PromptFormat]) -> None:
        format_ = formats[kind]
        longest = max(format_._tokenizer.backend.get_vocab(), key=len)
        texts = ["", " \n ", "Hello", "e\u0301" * 500, "漢字" * 400, " " * 3000, "hello " * 900, longest * 50]
        for text in [*texts, format_._tokenizer.backend.decode(list(range(5, 300)))]:
            messages = [Message("user", text)]
            assert format_.minimum_tokens(messages) <= format_.count(messages)

    def test_is_more_than_nothing(self, built_in: PromptFormat) -> None:
        assert built_in.longest_token_bytes == 81
        assert built_in.minimum_tokens([Message("user", "a" * 8100), Message("user", "b")]) == 101

    def test_leaves_out_bytes_that_the_tokenizer_drops(self, built_in: PromptFormat) -> None:
        messages = [Message("user", "x" + "\x04" * 9000 + "y")]
        assert built_in.count(messages) < 40
        assert built_in.minimum_tokens(messages) == 1

    def test_is_low_for_a_tokenizer_that_drops_text(self, tmp_path: Path) -> None:
        tokenizer = qwen_folder(tmp_path / "model")
        content = json.loads((tokenizer / "tokenizer.json").read_text())
        content["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"
        (tokenizer / "tokenizer.json").write_text(json.dumps(content))
        format_ = PromptFormat.load(tokenizer)
        assert format_.minimum_tokens([Message("user", "hello" * 9000)]) == 1
