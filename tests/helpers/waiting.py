"""How long a test waits for what another thread or process must do."""

GIVE_UP_S = 600  # not a measure of speed: a busy disk alone has held up writers that sync for more than a minute
