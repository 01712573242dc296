# libFuzzer's targets, one for each parser; tests/fuzz builds and runs them. NAME.c is given what libFuzzer makes of the
# files in seeds/NAME.
fuzz_targets = \
	tests/fuzzing/cluster \
	tests/fuzzing/config \
	tests/fuzzing/hostlist \
	tests/fuzzing/inventory \
	tests/fuzzing/options \
	tests/fuzzing/plan \
	tests/fuzzing/profile \
	tests/fuzzing/safetensors \
	tests/fuzzing/site \
	tests/fuzzing/tokens
EXTRA_PROGRAMS += $(fuzz_targets)
fuzz_libraries = tests/fuzzing/libfuzz.la libruntime.la libplan.la libmodel.la libinventory.la libbase.la
EXTRA_LTLIBRARIES += tests/fuzzing/libfuzz.la
tests_fuzzing_libfuzz_la_SOURCES = tests/fuzzing/fuzz.c tests/fuzzing/fuzz.h
tests_fuzzing_cluster_LDADD = $(fuzz_libraries)
tests_fuzzing_config_LDADD = $(fuzz_libraries)
tests_fuzzing_hostlist_LDADD = $(fuzz_libraries)
tests_fuzzing_inventory_LDADD = $(fuzz_libraries)
tests_fuzzing_options_LDADD = $(fuzz_libraries)
tests_fuzzing_plan_LDADD = $(fuzz_libraries)
tests_fuzzing_profile_LDADD = $(fuzz_libraries)
tests_fuzzing_safetensors_LDADD = $(fuzz_libraries)
tests_fuzzing_site_LDADD = $(fuzz_libraries)
tests_fuzzing_tokens_LDADD = $(fuzz_libraries)
EXTRA_DIST += tests/fuzz tests/fuzzing/seeds
