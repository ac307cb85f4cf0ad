"""The page at the root. It knows nothing by itself: it asks the server as any other client does."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse


def add_routes(app: FastAPI) -> None:
    @app.get("/")
    async def root() -> HTMLResponse:
        return HTMLResponse("<!doctype html><title>Tacit</title><p>tacit serve</p>")
