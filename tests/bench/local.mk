# Measurements that take too long for a test: `make check` builds them, tests/bench runs them by
# hand.
bench_search = \
	tests/bench/exhaustive.c tests/bench/exhaustive.h tests/bench/exhaustive_pipelines.c \
	tests/bench/tiny.c tests/bench/tiny.h \
	tests/bench/unlay.c tests/bench/unlay.h

check_PROGRAMS += tests/bench/optimum
tests_bench_optimum_SOURCES = tests/bench/optimum.c $(bench_search)
tests_bench_optimum_LDADD = libplan.la libmodel.la libinventory.la libbase.la
EXTRA_DIST += tests/bench/gpt2 tests/bench/gpt2_files.py tests/bench/gpt2_torch.py \
	tests/bench/launch tests/bench/packages tests/bench/solver tests/bench/step tests/bench/sync \
	tests/bench/sync_bootstrap.c tests/bench/sync_bootstrap.h tests/bench/validate \
	tests/bench/sync_ranks.c
