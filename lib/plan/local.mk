# Plans as pure functions of files: no Slurm, PMIx, NCCL, CUDA or threads here. What links it links
# libmodel.la, libinventory.la and libbase.la too; a convenience library holds its own objects only,
# so that none stands twice in a shared library made of several.
noinst_LTLIBRARIES += libplan.la
libplan_la_SOURCES = \
	lib/plan/anneal.c lib/plan/anneal.h \
	lib/plan/bind.c \
	lib/plan/blocks.c \
	lib/plan/bound.c lib/plan/bound.h lib/plan/bound_lp.c lib/plan/bound_lp.h \
	lib/plan/bound_network.c lib/plan/bound_network.h \
	lib/plan/bound_stages.c lib/plan/bound_stages.h \
	lib/plan/chains.c lib/plan/chains.h lib/plan/chain_beat.c lib/plan/chain_kit.h \
	lib/plan/chain_network.c lib/plan/chain_states.c lib/plan/chain_types.c \
	lib/plan/chain_workers.c lib/plan/chain_workers.h \
	lib/plan/classes.c lib/plan/classes.h \
	lib/plan/cluster.c lib/plan/cluster.h lib/plan/cluster_file.c \
	lib/plan/cost.c lib/plan/cost.h lib/plan/cost_transfer.c \
	lib/plan/deal.c lib/plan/deal.h \
	lib/plan/derive.c lib/plan/derive.h \
	lib/plan/draft.c lib/plan/draft.h lib/plan/draft_cut.c \
	lib/plan/draft_shape.c lib/plan/draft_place.c lib/plan/draft_place.h lib/plan/draft_lay.c \
	lib/plan/yard.c lib/plan/yard.h \
	lib/plan/evaluate.c lib/plan/evaluate.h \
	lib/plan/exact.c lib/plan/exact.h lib/plan/exact_in_flight.c lib/plan/exact_parts.h \
	lib/plan/exact_pipelines.c lib/plan/exact_plans.c \
	lib/plan/explain.c lib/plan/explain.h lib/plan/explain_more.c lib/plan/explain_print.c \
	lib/plan/idle.c lib/plan/idle.h \
	lib/plan/layout.c lib/plan/layout.h \
	lib/plan/link_classes.c lib/plan/link_classes.h \
	lib/plan/moves.c lib/plan/moves.h lib/plan/moves_group.c \
	lib/plan/moves_kit.c lib/plan/moves_kit.h lib/plan/moves_stage.c \
	lib/plan/observe.h \
	lib/plan/order.c lib/plan/order.h \
	lib/plan/partitions.c lib/plan/partitions.h \
	lib/plan/pipeline.c lib/plan/pipeline.h \
	lib/plan/plan.c lib/plan/plan.h lib/plan/plan_file.c lib/plan/plan_write.c \
	lib/plan/polish.c lib/plan/polish.h \
	lib/plan/pools.c lib/plan/pools.h \
	lib/plan/profile.c lib/plan/profile.h lib/plan/profile_file.c \
	lib/plan/program.c lib/plan/program.h \
	lib/plan/remedy.c lib/plan/remedy.h \
	lib/plan/report.c lib/plan/report.h \
	lib/plan/schedule.h \
	lib/plan/simulate.c lib/plan/simulate.h \
	lib/plan/solver.c lib/plan/solver.h \
	lib/plan/starts.c lib/plan/starts.h \
	lib/plan/starts_pairs.c lib/plan/starts_pairs.h \
	lib/plan/sums.c lib/plan/sums.h \
	lib/plan/svg.c \
	lib/plan/timeline.c lib/plan/timeline.h lib/plan/timeline_marks.c \
	lib/plan/timeline_marks.h lib/plan/timeline_print.c \
	lib/plan/trace.c \
	lib/plan/verify.c \
	lib/plan/waits.c lib/plan/waits.h
