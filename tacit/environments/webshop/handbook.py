"""Skills of the shop by hand, for methods that retrieve one: how to shop, never what to buy."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "search for the thing and what is said of it in few words; look at the price of a result before opening it; read the "
        "features where words of the request are missing; choose every option that is asked for, then click[buy now] before "
        "the steps run out"
    ),
    "fashion": "colour and size are options on the product's page: choose both before buying",
}
