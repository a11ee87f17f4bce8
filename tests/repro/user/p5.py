# mypy: ignore-errors
# ruff: noqa: E501
"""Change streams on the command line: tables, Debezium, conditions, starts."""

from tests.repro.user.shop import Shop

with Shop("p5", filled=True) as shop:
    shop.accounts()
    shop.shell(r"""
echo "== table"; lakestore changes cdc.accounts --before-images
echo "== debezium"; lakestore changes cdc.accounts --format debezium
echo "== schema"; lakestore changes cdc.accounts --format debezium-schema | head -1 | python -m json.tool | head -90
echo "== where"; lakestore changes cdc.accounts --where "balance > 11"
echo "== where bad"; lakestore changes cdc.accounts --where "ballance > 11"; lakestore changes cdc.accounts --where "upper(name)='ANN'"
echo "== start time"; lakestore changes cdc.accounts --start 2026-01-01T00:00Z --json | head -2;  lakestore changes cdc.accounts --start "5 minutes ago"; lakestore changes cdc.accounts --start beginning
echo "== feed debezium in"; lakestore changes cdc.accounts --format debezium > dbz.jsonl; lakestore write --yes --create --key id cdc.copy dbz.jsonl
""")
