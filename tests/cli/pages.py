"""An HTML page as a test looks at it: its tags with their attributes, its text, and its tables by id."""

from collections import defaultdict
from html.parser import HTMLParser

_VOID = {"meta", "br"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = defaultdict(list)
        self.text: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(text)
        self.close()
        assert self._open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = dict(attrs)["id"] or ""
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in {"th", "td"}:
            self.tables[self._table][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if {"th", "td"} & set(self._open):
            self.tables[self._table][-1][-1] += data

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table, without its head."""
        return [[" ".join(cell.split()) for cell in row] for row in self.tables[table][1:]]

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]
