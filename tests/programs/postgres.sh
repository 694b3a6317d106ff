#!/bin/sh
# postgres.sh BIN DATA CONNECTIONS ROWS: a server whose data are in DATA, and so many connections at once. Each sorts so
# many rows in memory of its own, holds them until all have done so, and then reads them to the end. Prints a hash of
# what each has read.
set -eu
bin=$1 data=$2 connections=$3 rows=$4
export PGHOST="$data" PGDATABASE=postgres PGUSER=test

"$bin/postgres" -D "$data" 2>"$data/log" &
server=$!
stop() {
	[ $? = 0 ] || cat "$data/log" >&2
	kill -INT $server
	wait $server
}
trap stop EXIT
until "$bin/pg_isready" -q; do sleep 0.1; done

"$bin/psql" -q <<'SQL'
	set client_min_messages = warning;
	drop table if exists sums;
	create table sums (client int, sum text);
	create or replace function rest() returns text language plpgsql as $$
		declare line text; sum text := ''; cursor refcursor := 'rows';
		begin
			loop
				fetch cursor into line;
				exit when not found;
				sum := md5(sum || line);
			end loop;
			return sum;
		end $$;
SQL
cat >"$data/script" <<SQL
	set work_mem = '256MB';
	begin;
	declare rows no scroll cursor for
		select md5(i::text || :client_id) || ' the order of customer ' || i % 977 || rpad(', to be sent to ' || i % 31, 400, ' and more')
			as line from generate_series(1, $rows) i order by line;
	move 1 in rows;
	select pg_advisory_lock_shared(1);
	insert into sums select :client_id, rest();
	commit;
SQL

# This session has the lock that all wait for until all do.
"$bin/psql" -q >"$data/held" <<SQL &
	select pg_advisory_lock(1);
	do \$\$ begin
		while (select count(*) from pg_locks where locktype = 'advisory' and not granted) < $connections loop
			perform pg_sleep(0.1);
		end loop;
	end \$\$;
SQL
holder=$!
until [ "$("$bin/psql" -Atc "select count(*) from pg_locks where locktype = 'advisory'")" = 1 ]; do sleep 0.1; done
"$bin/pgbench" -n -c "$connections" -t 1 -f "$data/script" >"$data/report" 2>&1
wait $holder
"$bin/psql" -Atc "select sum from sums order by client"
