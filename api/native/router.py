"""Our own resources, under /headstart/v1."""

from fastapi import APIRouter

from api.native import billing, health

router = APIRouter()
router.include_router(health.router)
router.include_router(billing.router)
