from datetime import UTC, datetime
from pathlib import Path

import pytest

from billing.meters import Meter
from billing.price_book import load_price_book
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
            ("meter", '"input"'),
            ("meter", "[]"),
            ("nano_usd_per_million", "-1"),
            ("nano_usd_per_million", "1.0"),
            ("nano_usd_per_million", "true"),
            ("nano_usd_per_million", '"1"'),
            ("nano_usd_per_million", "1000000000000001"),
            ("effective_from", "2026-01-01T00:00:00"),
            ("effective_from", "2026-01-01"),
            ("effective_from", '"2026-01-01T00:00:00Z"'),
            ("effective_from", "2026-01-01T00:00:00.5Z"),
            ("effective_from", "0001-01-01T00:00:00+14:00"),
            ("effective_from", "9999-12-31T23:59:59-14:00"),
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
        with pytest.raises(PriceBookInvalid, match=r"price 3 repeats .* of price 1"):
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

    def test_refuses_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "prices.toml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(PriceBookInvalid, match="not TOML"):
            load_price_book(path)

    def test_refuses_deep_nesting(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="not TOML"):
            load_price_book(written(tmp_path, text="price = " + "[" * 100_000))

    def test_refuses_a_huge_file(self, tmp_path: Path) -> None:
        with pytest.raises(PriceBookInvalid, match="larger than"):
            load_price_book(written(tmp_path, text="#" * 2_000_000))

    def test_refuses_a_missing_file_and_a_folder(self, tmp_path: Path) -> None:
        for path in (tmp_path / "absent.toml", tmp_path):
            with pytest.raises(PriceBookInvalid, match="cannot be read"):
                load_price_book(path)
