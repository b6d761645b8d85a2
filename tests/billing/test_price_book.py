from datetime import UTC, datetime
from pathlib import Path

import pytest

from billing.meters import Meter
from billing.price_book import load_price_book
from billing.price_checks import doubts
from core.errors import PriceBookInvalid

GOOD = {
    "model": '"*"',
    "meter": '"input_tokens"',
    "nano_usd_per_million": "5",
    "effective_from": "2026-01-01T00:00:00Z",
}


def written(folder: Path, *prices: dict[str, str], text: str = "") -> Path:
    path = folder / "prices.toml"
    tables = ["[[price]]\n" + "\n".join(f"{k} = {v}" for k, v in price.items()) for price in prices]
    path.write_text(text + "\n".join(tables))
    return path


class TestExample:
    def test_prices_every_meter_of_any_model(self) -> None:
        prices = {price.meter: price for price in load_price_book(None).prices}
        assert set(prices) == set(Meter)
        assert {price.model for price in prices.values()} == {"*"}

    def test_a_read_costs_a_tenth_of_input_and_storage_a_dollar_per_million_token_hours(self) -> None:
        prices = {price.meter: price.nano_usd_per_million for price in load_price_book(None).prices}
        assert prices[Meter.CACHE_READ_TOKENS] * 10 == prices[Meter.INPUT_TOKENS] > 0
        assert prices[Meter.CACHE_STORAGE_TOKEN_SECONDS] == 10**9


class TestLoadPriceBook:
    def test_reads_a_row(self, tmp_path: Path) -> None:
        (price,) = load_price_book(written(tmp_path, GOOD)).prices
        assert (price.model, price.meter, price.nano_usd_per_million) == ("*", Meter.INPUT_TOKENS, 5)
        assert price.effective_from == datetime(2026, 1, 1, tzinfo=UTC)

    def test_turns_an_offset_into_utc(self, tmp_path: Path) -> None:
        (price,) = load_price_book(
            written(tmp_path, {**GOOD, "effective_from": "2026-01-01T02:00:00+02:00"})
        ).prices
        assert price.effective_from == datetime(2026, 1, 1, tzinfo=UTC)
        assert price.effective_from.tzinfo is UTC

    def test_accepts_a_price_of_zero(self, tmp_path: Path) -> None:
        (price,) = load_price_book(written(tmp_path, {**GOOD, "nano_usd_per_million": "0"})).prices
        assert price.nano_usd_per_million == 0

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model", '""'),
            ("model", '" x"'),
            ("model", "1"),
            ("model", '"models/tiny"'),
            ("model", r'"a\u0000"'),
            ("model", r'"a\nb"'),
            ("model", f'"{"x" * 256}"'),
            ("meter", '"input"'),
            ("meter", "[]"),
            ("nano_usd_per_million", "-1"),
            ("nano_usd_per_million", "1.0"),
            ("nano_usd_per_million", "true"),
            ("nano_usd_per_million", '"1"'),
            ("nano_usd_per_million", "10000000000001"),
            ("effective_from", "2026-01-01T00:00:00"),
            ("effective_from", "2026-01-01"),
            ("effective_from", '"2026-01-01T00:00:00Z"'),
            ("effective_from", "2026-01-01T00:00:00.5Z"),
            ("effective_from", "0001-01-01T00:00:00+14:00"),
            ("effective_from", "9999-12-31T23:59:59-14:00"),
            ("effective_from", "1970-01-01T00:00:00+14:00"),
            ("effective_to", "9998-12-31T23:59:59-00:01"),
            ("effective_to", "2026-01-01T00:00:00"),
            ("effective_to", "2026-02-01T00:00:00.5Z"),
            ("effective_to", "2026-01-01T00:00:00Z"),  # when it begins
            ("effective_to", "2025-12-31T23:59:59Z"),
            ("project", '""'),
            ("project", "7"),
            ("project", r'"a\u007f"'),
        ],
    )
    def test_names_row_and_field_of_a_bad_value(self, tmp_path: Path, field: str, value: str) -> None:
        path = written(tmp_path, GOOD, {**GOOD, "model": '"b"', field: value})
        with pytest.raises(PriceBookInvalid, match=f"price 2: {field} must") as caught:
            load_price_book(path)
        assert str(path) in caught.value.message

    @pytest.mark.parametrize("field", GOOD)
    def test_names_a_missing_field(self, tmp_path: Path, field: str) -> None:
        path = written(tmp_path, {name: value for name, value in GOOD.items() if name != field})
        with pytest.raises(PriceBookInvalid, match=f"price 1: {field} is missing"):
            load_price_book(path)

    def test_refuses_an_unknown_field(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="price 1: effective_til is not known"):
            load_price_book(written(tmp_path, {**GOOD, "effective_til": "2026-01-01T00:00:00Z"}))

    def test_refuses_an_unknown_table(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match='"prices" is not known'):
            load_price_book(written(tmp_path, text="[[prices]]\n"))

    def test_refuses_the_same_row_twice(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match=r"price 3 .* overlaps price 1"):
            load_price_book(
                written(tmp_path, GOOD, {**GOOD, "model": '"b"'}, {**GOOD, "nano_usd_per_million": "6"})
            )

    @pytest.mark.parametrize("text", ["", "price = []", "price = 3"])
    def test_refuses_a_book_without_prices(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(PriceBookInvalid, match="it has no price"):
            load_price_book(written(tmp_path, text=text))

    def test_refuses_a_price_that_is_no_table(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="price 1 is not a table"):
            load_price_book(written(tmp_path, text="price = [3]"))

    def test_names_the_line_of_a_syntax_error(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="line 2"):
            load_price_book(written(tmp_path, text="[[price]]\nmodel = *\n"))

    def test_takes_utf_8_with_or_without_a_mark_and_says_so_of_anything_else(self, tmp_path: Path) -> None:
        path = written(tmp_path, GOOD | {"model": '"é"'})
        text = path.read_text()
        for encoding in ("utf-8", "utf-8-sig"):
            path.write_text(text, encoding=encoding)
            assert load_price_book(path).prices[0].model == "é"
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "latin-1"):
            path.write_text(text, encoding=encoding)
            with pytest.raises(PriceBookInvalid, match="save it as UTF-8"):
                load_price_book(path)

    def test_refuses_deep_nesting_wherever_it_stands(self, tmp_path: Path) -> None:
        deep = ".a" * 2_000
        for text, why in (
            ("price = " + "[" * 100_000, "not TOML"),
            (f"price{deep} = 1", "add .* tables"),
            (
                f"[[price]]\nmodel{deep} = 1\nmeter = 1\nnano_usd_per_million = 1\neffective_from = 1",
                "model must",
            ),
        ):
            with pytest.raises(PriceBookInvalid, match=why):
                load_price_book(written(tmp_path, text=text))

    @pytest.mark.parametrize("field", [*GOOD, "project"])
    def test_a_number_of_thousands_of_digits_is_a_bad_value_like_others(
        self, tmp_path: Path, field: str
    ) -> None:
        for value, why in (
            ("1" * 5000, "far too long"),
            ("0x" + "f" * 5000, f"{field} must"),
            (f"[0x{'f' * 5000}]", f"{field} must"),
            ("0o" + "7" * 5000, f"{field} must"),
        ):
            with pytest.raises(PriceBookInvalid, match=why) as caught:
                load_price_book(written(tmp_path, GOOD | {field: value}))
            assert len(caught.value.message) < 600

    def test_refuses_a_huge_file(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="larger than"):
            load_price_book(written(tmp_path, text="#" * 2_000_000))

    def test_refuses_a_missing_file_and_a_folder(self, tmp_path: Path) -> None:
        for path in (tmp_path / "absent.toml", tmp_path):
            with pytest.raises(PriceBookInvalid, match="cannot be read"):
                load_price_book(path)


def row(start: str, end: str | None = None, **fields: str) -> dict[str, str]:
    """A price from one day of January to another; the other fields are those of GOOD."""
    until = {} if end is None else {"effective_to": f"2026-01-{end}T00:00:00Z"}
    return GOOD | {"effective_from": f"2026-01-{start}T00:00:00Z"} | until | fields


class TestTimes:
    def test_a_price_ends_where_the_next_of_its_subject_begins(self, tmp_path: Path) -> None:
        own = {"model": '"m"'}
        book = load_price_book(written(tmp_path, row("05"), row("01"), row("03", **own), row("09", **own)))
        ends = [(price.model, price.effective_from.day, price.effective_to) for price in book.prices]
        fifth, ninth = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC)
        assert ends == [("*", 1, fifth), ("*", 5, None), ("m", 3, ninth), ("m", 9, None)]

    @pytest.mark.parametrize("end", ["06", "31"])
    def test_refuses_an_end_behind_the_next_beginning(self, tmp_path: Path, end: str) -> None:
        with pytest.raises(PriceBookInvalid, match=r"price 2 .* overlaps price 1 .*Leave effective_to out"):
            load_price_book(written(tmp_path, row("01", end), row("05")))

    def test_an_end_may_be_where_the_next_begins(self, tmp_path: Path) -> None:
        assert len(load_price_book(written(tmp_path, row("01", "05"), row("05"))).prices) == 2

    def test_refuses_a_gap_and_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(
            PriceBookInvalid,
            match="ends at 2026-01-04T00:00:00Z, and input_tokens then has none until 2026-01-05",
        ):
            load_price_book(written(tmp_path, row("01", "04"), row("05")))

    def test_refuses_an_end_that_nothing_follows(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="has none for ever"):
            load_price_book(written(tmp_path, row("01", "04")))

    @pytest.mark.parametrize(
        "own", [{"model": '"m"'}, {"project": '"p"'}, {"model": '"m"', "project": '"p"'}]
    )
    def test_an_own_price_may_end_where_that_of_all_takes_its_place(
        self, tmp_path: Path, own: dict[str, str]
    ) -> None:
        assert len(load_price_book(written(tmp_path, row("01"), row("02", "04", **own))).prices) == 2
        with pytest.raises(PriceBookInvalid, match="then has none"):
            load_price_book(written(tmp_path, row("05"), row("02", "04", **own)))

    def test_projects_have_prices_of_their_own(self, tmp_path: Path) -> None:
        book = load_price_book(written(tmp_path, GOOD, GOOD | {"project": '"p"'}))
        assert [price.project_id for price in book.prices] == ["*", "p"]


class TestSense:
    READ = GOOD | {"meter": '"cache_read_tokens"'}

    def test_a_read_may_cost_what_input_does(self, tmp_path: Path) -> None:
        assert len(load_price_book(written(tmp_path, GOOD, self.READ)).prices) == 2

    @pytest.mark.parametrize("meter", ["cache_read_tokens", "implicit_cache_read_tokens"])
    def test_refuses_a_read_that_costs_more_than_input(self, tmp_path: Path, meter: str) -> None:
        dear = GOOD | {"meter": f'"{meter}"', "nano_usd_per_million": "6"}
        with pytest.raises(PriceBookInvalid, match=rf"{meter} .* more than input does \(5\)"):
            load_price_book(written(tmp_path, GOOD, dear))

    def test_compares_what_applies_at_the_same_time_to_the_same_payer(self, tmp_path: Path) -> None:
        dear = self.READ | {"nano_usd_per_million": "6"}
        later = {"effective_from": "2026-02-01T00:00:00Z"}
        raised = GOOD | later | {"nano_usd_per_million": "6"}
        assert len(load_price_book(written(tmp_path, GOOD, raised, self.READ, dear | later)).prices) == 4
        for own in ({"project": '"p"'}, {"model": '"m"'}):
            with pytest.raises(PriceBookInvalid, match="more than input does"):
                load_price_book(written(tmp_path, GOOD, self.READ, dear | own))
            cheaper = GOOD | own | {"nano_usd_per_million": "4"}
            with pytest.raises(PriceBookInvalid, match="more than input does"):
                load_price_book(written(tmp_path, GOOD, self.READ, cheaper))

    def test_what_may_be_a_slip_is_told_and_not_refused(self, tmp_path: Path) -> None:
        def told(*prices: dict[str, str]) -> list[str]:
            return doubts(load_price_book(written(tmp_path, *prices)).prices)

        whole = [GOOD | {"meter": f'"{meter}"'} for meter in Meter]
        assert doubts(load_price_book(None).prices) == told(*whole) == []
        (missing,) = told(*whole[1:])
        assert (
            f'Model "*" has no price for {next(iter(Meter))}: requests that count them are refused' in missing
        )
        for own in ({"model": '"m"'}, {"project": '"p"'}, {"model": '"m"', "project": '"p"'}):
            assert told(*whole, whole[0] | own) == []  # everybody's stands in for the others
            (missing,) = told(whole[0] | own)
            assert f"has no price for {', '.join([*Meter][1:])}:" in missing
        output = GOOD | {"meter": '"output_tokens"', "nano_usd_per_million": "1_000_000_000_000"}
        assert told(*whole[:-1], output) == []
        (dear,) = told(*whole[:-1], output | {"nano_usd_per_million": "1_000_000_000_001"})
        assert 'output_tokens for model "*"' in dear
        assert "1000.000000001 USD per million. Is that meant?" in dear
