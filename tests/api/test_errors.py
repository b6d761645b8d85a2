import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from api.errors import CACHE_GONE, TABLE, Dialect, envelope, error_response, status_of, to_app_error
from core import errors
from core.errors import AppError, StartupError, error_classes

REQUEST_ERRORS = [each for each in error_classes() if not issubclass(each, StartupError)]
GONE = [each for each in REQUEST_ERRORS if issubclass(each, errors.CacheNotFound)]
BAD_KEYS = [errors.KeyMissing, errors.KeyInvalid, errors.BearerInvalid]


def request(path: str, query: str = "") -> Request:
    return Request({"type": "http", "path": path, "query_string": query.encode(), "headers": []})


def test_the_table_has_every_request_error_and_nothing_else() -> None:
    assert set(TABLE) == {each.code for each in REQUEST_ERRORS}


def test_reasons_are_unique_and_upper_case() -> None:
    reasons = [row.reason for row in TABLE.values()]
    assert len(set(reasons)) == len(reasons)
    assert all(reason == reason.upper() for reason in reasons)


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_envelope_has_googles_shape(kind: type[AppError], dialect: Dialect) -> None:
    error = kind("What went wrong.", field="a.b", metadata={"limit": "3"}, retry_after_seconds=1.5)
    body = envelope(error, dialect)
    assert list(body) == ["error"]
    inner = body["error"]
    status = status_of(error, dialect)
    assert (inner["code"], inner["status"]) == (status.http, status.canonical)
    assert inner["message"]
    info = inner["details"][0]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert info["domain"] == "headstart"
    assert all(detail["@type"].startswith("type.googleapis.com/google.rpc.") for detail in inner["details"])
    json.dumps(body)


class TestGone:
    @pytest.mark.parametrize("kind", GONE)
    def test_every_way_of_being_gone_reads_alike_but_for_the_reason(self, kind: type[AppError]) -> None:
        error = envelope(kind("Told to nobody.", field="x", metadata={"name": "y"}), Dialect.GEMINI)["error"]
        reason = error["details"][0].pop("reason")
        assert error == {
            "code": 403,
            "message": CACHE_GONE,
            "status": "PERMISSION_DENIED",
            "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "headstart"}],
        }
        assert reason == kind.code.upper()

    @pytest.mark.parametrize("kind", GONE)
    def test_under_our_own_resources_it_is_404(self, kind: type[AppError]) -> None:
        assert envelope(kind("x"), Dialect.NATIVE)["error"]["code"] == 404


class TestKeys:
    def test_gemini_tells_three_causes_apart(self) -> None:
        answers = [status_of(kind("x"), Dialect.GEMINI) for kind in BAD_KEYS]
        assert [(answer.http, answer.canonical) for answer in answers] == [
            (403, "PERMISSION_DENIED"),
            (400, "INVALID_ARGUMENT"),
            (401, "UNAUTHENTICATED"),
        ]

    def test_our_own_resources_answer_all_causes_with_one_body(self) -> None:
        bodies = [envelope(kind("x", field="y"), Dialect.NATIVE) for kind in BAD_KEYS]
        assert bodies[0] == bodies[1] == bodies[2]
        assert bodies[0]["error"]["code"] == 401

    def test_a_401_says_how_to_authenticate(self) -> None:
        response = error_response(errors.KeyMissing("x"), request("/headstart/v1/billing/report"))
        assert response.headers["www-authenticate"] == "Bearer"


class TestDetails:
    def test_violations_name_fields(self) -> None:
        error = errors.InvalidArgument("Two.", violations=(("a", "wrong"), ("b[0]", "worse")))
        assert envelope(error, Dialect.GEMINI)["error"]["details"][1]["fieldViolations"] == [
            {"field": "a", "description": "wrong"},
            {"field": "b[0]", "description": "worse"},
        ]

    def test_a_quota_is_told_with_its_numbers(self) -> None:
        error = errors.ArenaFull("Needs 7 blocks, 3 are free.", metadata={"free": "3"})
        details = envelope(error, Dialect.GEMINI)["error"]["details"]
        assert details[0]["metadata"] == {"free": "3"}
        assert details[1]["violations"] == [
            {"quotaId": "ARENA_FULL", "description": "Needs 7 blocks, 3 are free."}
        ]

    def test_a_wait_is_told_in_the_body_and_in_a_header(self) -> None:
        error = errors.Unavailable("Busy.", retry_after_seconds=1.2)
        assert envelope(error, Dialect.GEMINI)["error"]["details"][-1]["retryDelay"] == "1.200s"
        assert error_response(error, request("/v1/models")).headers["retry-after"] == "2"


class TestToAppError:
    def test_an_unknown_route_is_ours(self) -> None:
        assert isinstance(to_app_error(HTTPException(404)), errors.RouteNotFound)

    def test_what_nobody_foresaw_is_logged_and_told_to_no_caller(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = to_app_error(ValueError("a secret"))
        assert isinstance(error, errors.Internal)
        assert "secret" not in error.message
        assert "a secret" in caplog.text

    def test_an_error_that_no_caller_can_cause_becomes_internal(self) -> None:
        assert isinstance(to_app_error(errors.ModelBroken("x")), errors.Internal)

    def test_a_wrong_method_tells_the_right_ones(self) -> None:
        error = errors.MethodNotAllowed("x", metadata={"allowed": "GET, POST"})
        response = error_response(error, request("/v1/cachedContents"))
        assert (response.status_code, response.headers["allow"]) == (405, "GET, POST")


class TestArrays:
    def test_a_stream_of_an_array_gets_an_array(self) -> None:
        path = "/v1beta/models/m:streamGenerateContent"
        assert (
            json.loads(bytes(error_response(errors.Internal("x"), request(path)).body))[0]["error"]["code"]
            == 500
        )
        assert json.loads(bytes(error_response(errors.Internal("x"), request(path, "alt=sse")).body))["error"]
