# mypy: ignore-errors
# ruff: noqa: E501
"""A lost disk: a backup in the default configuration, restored, does not have the lake."""

from tests.repro.user.shop import Shop

with Shop("op4") as shop:
    shop.shell(r"""
rm -rf ds ds_gone ds_bk ds_r
up() { for i in $(seq 100); do lakestore status >/dev/null 2>&1 && return; sleep 0.3; done; }
(lakestore serve --data ./ds --port $PORT --http-port $HTTP_PORT > ds.out 2>ds.log & echo $! > ds.pid); up
python -c "import json
for i in range(2000): print(json.dumps({\"order_id\": i, \"step\": \"s\"}))" > small.jsonl
lakestore write --yes --create shop.ev small.jsonl; lakestore write --yes --key order_id shop.pk small.jsonl
nice -n 5 lakestore tier --once 2>/dev/null
lakestore write shop.ev small.jsonl
lakestore backup $PWD/ds_bk
kill $(cat ds.pid); while kill -0 $(cat ds.pid) 2>/dev/null; do sleep 0.2; done; mv ds ds_gone     # the disk is lost
lakestore restore ds_bk --data ds_r; echo rc $?
(lakestore serve --data ./ds_r --port $PORT --http-port $HTTP_PORT > ds.out 2>ds.log & echo $! > ds.pid); up; tail -3 ds.log
echo "-- status"; lakestore status | tail -4
echo "-- read"; lakestore read shop.pk --count; lakestore read shop.pk --limit 2; lakestore lookup shop.pk 5; lakestore read shop.ev --count; lakestore read shop.ev --limit 2
echo "-- verify"; lakestore verify shop.pk; echo rc $?
echo "-- tier"; nice -n 5 lakestore tier --once 2>ds_tier.err; echo rc $?; tail -2 ds_tier.err | cut -c1-400
kill $(cat ds.pid)
""")
