# mypy: ignore-errors
# ruff: noqa: E501
"""A table and its database, made by `lakestore write --key`, on a new server."""

from tests.repro.user.shop import Shop

with Shop("t_autocreate") as shop:
    shop.shell(r"""
(lakestore serve --data ./ac --port $PORT --http-port $HTTP_PORT >ac.out 2>ac.log & echo $! > ac.pid)
for i in $(seq 60); do lakestore tables >/dev/null 2>&1 && break; sleep 1; done
echo '{"id": 1, "ts": "2026-01-01T00:00:00Z"}' > ac.jsonl
lakestore write --yes --key id shop.ev ac.jsonl; echo "rc $?"; lakestore tables; lakestore describe shop.ev | tail -2; lakestore drop shop.ev 2>&1 | tail -1
kill $(cat ac.pid)
""")
