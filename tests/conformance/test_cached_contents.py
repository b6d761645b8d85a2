"""cachedContents: what create answers, and what becomes of a cache."""

from tests.conformance.client import Client, content


def test_15_create_returns_what_a_cache_is_and_nothing_of_its_content(client: Client) -> None:
    cache = client.create(content(70, "create"), systemInstruction="Be brief.", displayName="Mine")
    assert cache["name"].startswith("cachedContents/")
    assert cache["model"] == f"models/{client.host.model}"
    assert cache["displayName"] == "Mine"
    assert cache["usageMetadata"]["totalTokenCount"] > 70
    assert {"createTime", "updateTime", "expireTime"} <= cache.keys()
    assert not {"contents", "systemInstruction", "tools", "toolConfig", "ttl"} & cache.keys()
    assert client.create(content(70, "unnamed"))["displayName"] == ""
