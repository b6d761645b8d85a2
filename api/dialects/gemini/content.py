"""Contents and parts as they come in, and the messages they become for the chat template."""

from collections.abc import Iterator, Sequence

from api.dialects.gemini.fields import Bytes, Repeated, Unsupported, Wire
from core.errors import InvalidArgument, NotSupported
from prompting.messages import Message

_TEXT_TYPES = ("text/", "application/json")


class Blob(Wire):
    mime_type: str | None = None
    data: Bytes | None = None
    display_name: str | None = None


class Part(Wire):
    text: str | None = None
    inline_data: Blob | None = None
    thought: bool | None = (
        None  # a model's thinking, sent back in a history: accepted, and not repeated to it
    )
    thought_signature: Bytes | None = None
    part_metadata: dict[str, object] | None = None
    file_data: Unsupported = None
    function_call: Unsupported = None
    function_response: Unsupported = None
    executable_code: Unsupported = None
    code_execution_result: Unsupported = None
    tool_call: Unsupported = None
    tool_response: Unsupported = None
    video_metadata: Unsupported = None
    media_resolution: Unsupported = None
    media_processing: Unsupported = None
    audio_transcription: Unsupported = None
    speech_metadata: Unsupported = None
    document_metadata: Unsupported = None
    spreadsheet_metadata: Unsupported = None
    audio_metadata: Unsupported = None


class Content(Wire):
    role: str | None = None
    parts: Repeated[Part] | None = None


def to_messages(
    system_instruction: Content | None, contents: Sequence[Content], root: str = ""
) -> tuple[Message, ...]:
    """Put contents into the order and roles of a chat.

    Contents of the model that follow one another are one message: the SDK's chats keep each piece of a streamed answer
    as a content of its own. Contents of the user stay apart, as they were sent.
    """
    messages: list[Message] = []
    prefix = root + "." if root else ""
    if system_instruction is not None:
        messages.append(Message("system", _text(system_instruction, f"{prefix}system_instruction")))
    follows_model = False
    for index, content in enumerate(contents):
        path = f"{prefix}contents[{index}]"
        text = _text(content, path)
        is_model = _is_model(content, path)
        if is_model and follows_model:
            messages[-1] = Message("assistant", messages[-1].text + text)
        else:
            messages.append(Message("assistant" if is_model else "user", text))
        follows_model = is_model
    return tuple(messages)


def _is_model(content: Content, path: str) -> bool:
    if content.role not in {None, "", "user", "model"}:
        raise InvalidArgument("Please use a valid role: user, model.", field=f"{path}.role")
    return content.role == "model"


def _text(content: Content, path: str) -> str:
    if not content.parts:
        raise InvalidArgument(f"{path}.parts must not be empty.", field=f"{path}.parts")
    return "".join(_texts(content.parts, path))


def _texts(parts: Sequence[Part], path: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        part_path = f"{path}.parts[{index}]"
        if (part.text is None) == (part.inline_data is None):
            raise InvalidArgument(
                f"{part_path}: required oneof field 'data' must have one initialized field: text or inline_data.",
                field=part_path,
            )
        if part.thought:
            continue
        if part.text is not None:
            yield part.text
        elif part.inline_data is not None:
            yield _decode(part.inline_data, f"{part_path}.inline_data")


def _decode(blob: Blob, path: str) -> str:
    mime_type = (blob.mime_type or "").lower()
    if not mime_type:
        raise InvalidArgument(f"{path}.mime_type is missing.", field=f"{path}.mime_type")
    if not mime_type.startswith(_TEXT_TYPES):
        raise NotSupported(
            f"'{path}' is not supported by this server with MIME type {mime_type[:100]!r}: send text/* or application/json.",
            field=f"{path}.mime_type",
        )
    try:
        text = (blob.data or b"").decode("utf-8")
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" in text:
        raise InvalidArgument(
            f"Invalid value at '{path}.data': it is no UTF-8 text, or has a NUL character.",
            field=f"{path}.data",
        )
    return text
