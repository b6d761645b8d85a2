"""models: list and get. One model is served; an alias leads to it and shows its own name."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.auth import AnyCaller
from api.dialects.gemini.prompts import check_model, model_not_found
from api.dialects.gemini.query import read_page_size, read_query
from api.dialects.gemini.responses import model_resource, ok
from api.state import api_state
from core.errors import InvalidArgument

router = APIRouter()

_DEFAULT_PAGE = 50


@router.get("/models")
async def list_models(request: Request, _caller: AnyCaller) -> Response:
    query = read_query(request, "page_size", "page_token", "filter")
    read_page_size(query, _DEFAULT_PAGE)
    if query.get("page_token"):
        raise InvalidArgument(
            "The page token is invalid: there is one page only. Leave it out.", field="page_token"
        )
    return ok({"models": [model_resource(api_state(request).served_model)]})


@router.get("/tunedModels")
async def list_tuned_models(request: Request, _caller: AnyCaller) -> Response:
    """Nothing is tuned here; the SDKs ask when they are told to list more than base models."""
    read_query(request, "page_size", "page_token", "filter")
    return ok({})


@router.get("/models/{model:path}")
async def get_model(request: Request, _caller: AnyCaller, model: str) -> Response:
    read_query(request)
    state = api_state(request)
    check_model(state, request, model, "GetModel")
    return ok(model_resource(state.served_model))


@router.post("/models/{model:path}")
async def refuse_method(request: Request, _caller: AnyCaller, model: str) -> Response:
    """A method that no model here has; this route comes after all that are known."""
    name, _, method = model.rpartition(":")
    raise model_not_found(request, name or method, method)
