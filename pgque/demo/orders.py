"""The orders of the demo: ``orders.jsonl`` beside this file, and the program that made it.

The same file comes out again of ``python -m pgque.demo.orders > pgque/demo/orders.jsonl``.
"""

from __future__ import annotations

import json
import random
import sys
from importlib import resources
from typing import Any

Order = dict[str, Any]

_COUNT = 3000
# country: (weight, currency, decimals, cities with a postcode each; some countries have none)
_COUNTRIES: dict[str, tuple[int, str, int, list[tuple[str, str | None]]]] = {
    "DE": (24, "EUR", 2, [("Berlin", "10435"), ("Köln", "50672"), ("Leipzig", "04109")]),
    "GB": (18, "GBP", 2, [("London", "e1 6an"), ("Leeds", "ls1 4dy"), ("Cardiff", "cf10 1bh")]),
    "FR": (15, "EUR", 2, [("Paris", "75011"), ("Nîmes", "30000"), ("Orléans", "45000")]),
    "US": (14, "USD", 2, [("Portland", "97205"), ("Boston", "02116"), ("Austin", "78704")]),
    "NL": (9, "EUR", 2, [("Utrecht", "3512 jc"), ("Groningen", "9712 hv")]),
    "PL": (7, "PLN", 2, [("Łódź", "90-001"), ("Kraków", "31-042")]),
    "SE": (6, "SEK", 2, [("Malmö", "211 34"), ("Umeå", "903 26")]),
    "ES": (5, "EUR", 2, [("Sevilla", "41004"), ("A Coruña", "15001")]),
    "HK": (1, "HKD", 2, [("Kowloon", None), ("Sha Tin", None)]),
    "JP": (1, "JPY", 0, [("Kyoto", "604-8005"), ("Sapporo", "060-0042")]),
}
_FIRST = ["Anna", "Ben", "Chloé", "Daniel", "Elif", "Grace", "Ines", "Jakub", "Mateo", "Olu", "Zoë"]
_LAST = ["Baker", "Costa", "Dubois", "Eriksson", "García", "Huber", "Ito", "Kowalski", "O'Neill"]
_GOODS = [
    ("TEA-100", "Darjeeling, 100 g", 890),
    ("TEA-250", "Darjeeling, 250 g", 1990),
    ("POT-1", "Teapot, cast iron", 6450),
    ("CUP-2", "Two cups", 2400),
    ("KET-EL", "Kettle, 1.7 l", 4999),
    ("SCL-01", "Kitchen scales", 2795),
    ("GFT-25", "Gift card", 2500),
]


def load(count: int | None = None) -> list[Order]:
    """Return the first `count` orders of the file, or all of them."""
    text = resources.files(__package__).joinpath("orders.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()[:count]]


def generate(count: int = _COUNT, seed: int = 20240229) -> list[Order]:
    """Make up `count` orders; the same seed gives the same orders."""
    rng = random.Random(seed)
    return [_order(rng, 100_001 + number) for number in range(count)]


def _order(rng: random.Random, order_id: int) -> Order:
    weights = [country[0] for country in _COUNTRIES.values()]
    country = rng.choices(list(_COUNTRIES), weights)[0]
    _, currency, decimals, cities = _COUNTRIES[country]
    city, postcode = rng.choice(cities)
    items = [_item(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
    cents = sum(price * item["quantity"] for price, item in items)
    channel = "marketplace" if rng.random() < 0.35 else "shop"
    declined = channel == "shop" and rng.random() < 0.015
    return {
        "id": order_id,
        "channel": channel,
        "customer": f"C{rng.randrange(1, 800):04d}",
        "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "city": city,
        "postcode": postcode,
        "country": country,
        "items": [item for _, item in items],
        "currency": currency,
        "total": f"{cents / 100:.2f}" if decimals else str(cents),
        "payment": "declined" if declined else "card",
    }


def _item(rng: random.Random) -> tuple[int, dict[str, Any]]:
    sku, name, price = rng.choice(_GOODS)
    return price, {"sku": sku, "name": name, "quantity": rng.choice([1, 1, 1, 2, 4])}


if __name__ == "__main__":
    for order in generate():
        sys.stdout.write(json.dumps(order, ensure_ascii=False, separators=(",", ":")) + "\n")
