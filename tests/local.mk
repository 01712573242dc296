# The cluster tests are run by tests/run, not by make check: they need root and daemons.
EXTRA_DIST += \
	tests/run \
	tests/soak \
	tests/packages \
	tests/packaging/packages \
	tests/packaging/packages.bats \
	tests/cluster/attacks.bats \
	tests/cluster/checkpoint.bats \
	tests/cluster/cluster.bats \
	tests/cluster/exchange.bats \
	tests/cluster/faults.bash \
	tests/cluster/faults.bats \
	tests/cluster/gpu.bats \
	tests/cluster/helpers.bash \
	tests/cluster/late_finalize.c \
	tests/cluster/launch.bats \
	tests/cluster/load.bats \
	tests/cluster/losses.bats \
	tests/cluster/mini_cluster.bats \
	tests/cluster/losses.bash \
	tests/cluster/mpi.bats \
	tests/cluster/plans.bash \
	tests/cluster/plugin.bats \
	tests/cluster/pmix_exchange.c \
	tests/cluster/setup_suite.bash \
	tests/cluster/slow_fsync.c \
	tests/cluster/spy.c \
	tests/emulation/launcher \
	tests/slurm-versions/build \
	tests/slurm-versions/make-root \
	tests/recorded/gpt2-reference/config.json \
	tests/recorded/gpt2-reference/logits.safetensors \
	tests/recorded/gpt2-reference/model.safetensors \
	tests/recorded/llama-reference/config.json \
	tests/recorded/llama-reference/logits.safetensors \
	tests/recorded/llama-reference/model.safetensors \
	tests/recorded/make_llama
