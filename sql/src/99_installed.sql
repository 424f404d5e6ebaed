-- Installed.

insert into pgque.installation (version, shape)
values (pgque.version(), 1)
on conflict (only_row) do update set version = excluded.version, shape = excluded.shape, installed_at = now();
