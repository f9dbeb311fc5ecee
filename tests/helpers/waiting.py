"""How long a test waits for what another thread or process must do."""

GIVE_UP_S = 600  # not a measure of speed: on a busy machine, processes have stood still for more than a minute
