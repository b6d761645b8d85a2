"""Imported by the process that all servers are forked from: what each of them would import, or work out, at its start."""

import alembic.command
import pytest
import sqlalchemy.dialects.sqlite
import uvicorn.protocols.http.httptools_impl
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.llama import modeling_llama

import cli.main
import cli.serve

get_checkpoint_conversion_mapping("llama")  # type: ignore[no-untyped-call]

__all__ = ["alembic", "cli", "modeling_llama", "pytest", "sqlalchemy", "uvicorn"]
