import json

import pytest

from prompting.messages import Message, to_json


def test_messages_come_back_from_json() -> None:
    messages = [Message("system", ""), Message("user", "漢字\n"), Message("assistant", "x")]
    assert [Message.from_json(each) for each in json.loads(json.dumps(to_json(messages)))] == messages


@pytest.mark.parametrize("damaged", [{"role": "tool", "text": ""}, {"role": "user", "text": None}])
def test_a_damaged_message_is_noticed(damaged: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="stored message is damaged"):
        Message.from_json(damaged)
