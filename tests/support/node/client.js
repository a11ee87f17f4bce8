// node-postgres asks a Postgres port: `node client.js '{"host": …, "port": …}'` prints one JSON object, work to outcome.
// An outcome is {"value": …} or {"code": SQLSTATE}.
const { Client, Pool } = require('pg');
const Cursor = require('pg-cursor');
const QueryStream = require('pg-query-stream');

const config = JSON.parse(process.argv[2]);
const ENDLESS = 'SELECT count(*) FROM range(300000000000)';
const outcomes = {};

async function record(name, work) {
  try {
    outcomes[name] = { value: await work() };
  } catch (error) {
    outcomes[name] = { code: error.code ?? String(error) };
  }
}

async function rowsOf(client, text, values) {
  return (await client.query({ text, values, rowMode: 'array' })).rows;
}

async function types(client) {
  await record('every', async () => (await client.query('SELECT * FROM every ORDER BY id')).rows);
  await record('parameters', () => rowsOf(client,
    'SELECT $1::int, $2::text, $3::bool, $4::timestamptz, $5::jsonb, $6::bytea, $7::numeric(10,2), $8::text[], $9::bigint',
    [1, 'ß"\'', true, new Date(0), { a: [1] }, Buffer.from([0, 255]), 1.5, ['a', null, 'c"d'], 12345678901n]));
  await record('any', () => rowsOf(client, 'SELECT order_id FROM orders WHERE order_id = ANY($1) ORDER BY 1', [[1, 2, 200]]));
}

async function statements(client) {
  await record('named', async () => {
    const found = [];
    for (const order of [3, 4, 5]) {
      const query = { name: 'customer', text: 'SELECT customer FROM orders WHERE order_id = $1', values: [order] };
      found.push((await client.query(query)).rows[0].customer);
    }
    return found;
  });
  await record('several', async () => (await client.query('SELECT 1 AS a; SELECT 2 AS b')).map((each) => each.rows));
  await record('transaction', async () => {
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY');
    const rows = await rowsOf(client, 'SELECT count(*) FROM orders');
    await client.query('COMMIT');
    return rows;
  });
  await record('no table', () => client.query('SELECT * FROM nope'));
  await record('no column', () => client.query('SELECT nope FROM orders'));
  await record('syntax', () => client.query('SELEC 1'));
  await record('write', () => client.query('DELETE FROM orders'));
}

async function pieces(client) {
  await record('cursor', async () => {
    const cursor = client.query(new Cursor('SELECT order_id FROM orders WHERE order_id >= $1 ORDER BY 1', [90]));
    const found = [(await cursor.read(3)).length, (await cursor.read(100)).length];
    await cursor.close();
    return found;
  });
  await record('cursor closed early', async () => {
    const cursor = client.query(new Cursor('SELECT order_id FROM orders ORDER BY 1'));
    const found = await cursor.read(3);
    await cursor.close();
    return found;
  });
  await record('stream', async () => {
    let sum = 0;
    const stream = client.query(new QueryStream('SELECT seq FROM events', [], { batchSize: 7 }));
    for await (const row of stream) sum += Number(row.seq);
    return sum;
  });
}

async function ends(client) {
  await record('timeout', async () => {
    await client.query('SET statement_timeout = 300');
    try {
      return await client.query(ENDLESS);
    } finally {
      await client.query('SET statement_timeout = 0');
    }
  });
  await record('cancel', async () => {
    const query = client.query(ENDLESS);
    await new Promise((resolve) => setTimeout(resolve, 500));
    const canceller = new Client(config);
    canceller.cancel(client, client._activeQuery ?? client.activeQuery);
    return query;
  });
  await record('afterwards', () => rowsOf(client, 'SELECT 1'));
  await record('pool', async () => {
    const pool = new Pool({ ...config, max: 3 });
    const asked = [1, 2, 3, 4].map((order) => pool.query('SELECT customer FROM orders WHERE order_id = $1', [order]));
    const found = (await Promise.all(asked)).map((each) => each.rows[0].customer);
    await pool.end();
    return found;
  });
  await record('another password', () => new Client({ ...config, password: 'x' }).connect());
}

async function main() {
  const client = new Client(config);
  await client.connect();
  for (const work of [types, statements, pieces, ends]) await work(client);
  await client.end();
  console.log(JSON.stringify(outcomes));
}

main();
