-- The functions that run with the rights of their owner are not for everybody. Which role may execute which is in
-- core/store/roles.py. Each role may call the one that names the server.
do $body$
declare
  f regprocedure;
begin
  for f in select p.oid::regprocedure from pg_proc p
           where p.pronamespace = '{s}'::regnamespace and p.prosecdef and starts_with(p.proname, 'xq_')
             and p.proname <> 'xq_server_life_v1' and has_function_privilege('public', p.oid, 'execute') loop
    execute format('revoke execute on function %s from public', f);
  end loop;
end $body$;
