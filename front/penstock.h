/* The C interface of penstock: optimizer states, and if wanted parameters, in host memory and on
 * NVMe, for a module that the caller computes (docs/c_api.md). The only public header of
 * libpenstock.so.
 *
 *   penstock_create(config, model, options, &engine)        plans memory, makes or opens the files
 *   penstock_fill(engine, unit, tensors) for each unit      unless a commit is resumed; or
 *                                                           penstock_fill_states
 *   each step:
 *     penstock_use(engine, unit, PENSTOCK_FORWARD, to)      brings a unit's weights
 *     penstock_use(engine, unit, PENSTOCK_BACKWARD, to)
 *     penstock_gradient(engine, unit, tensor, values, dtype) adds a micro-batch's gradient
 *     penstock_report_loss(engine, loss)                    for each step, or for none
 *     penstock_end_step(engine, groups, …)                  norm, clipping, update; returns early
 *   penstock_begin_commit(engine, json), penstock_finish_commit(engine)
 *   penstock_close(engine)
 * A run keeps the paths of a training's state files:
 *   penstock_open_run(options, &run)                       locks the folder; begins or resumes
 *   penstock_create_in(run, config, model, options, &engine)   in place of penstock_create
 *   penstock_close(engine), penstock_close_run(run)
 * If the caller's weights and gradients are on a GPU, functions whose names end with _on replace
 * penstock_use, penstock_use_tensors and penstock_gradient (docs/c_api.md, "Memory of a GPU").
 *
 * A unit is brought and released as a whole: a block of a transformer, an embedding. Its tensors
 * lie in one buffer of the caller, at the offsets that penstock_describe gives, or each in its own
 * memory (penstock_use_tensors). Updates continue on threads of the engine after penstock_end_step
 * has returned; the next use of a unit waits for its own update and no other.
 *
 * Errors: functions return PENSTOCK_OK or another penstock_code; penstock_error() then has one line
 * that says what failed, on what, why, and what to do. No call aborts because of its arguments,
 * except for invalid addresses.
 *
 * Threads: any function from any thread; calls on the same engine wait for each other. None may
 * begin once penstock_close has begun. Buffers belong to the caller and are not used after the call
 * returns; those of the functions whose names end with _on are used until the copy has completed.
 * End: engines and runs that are still open are closed when the process ends by exit().
 * Fork: engines and runs belong to the process that made them. In a child, every call on one fails
 * with PENSTOCK_UNAVAILABLE, and closing it frees nothing. A child does not keep a run locked.
 */
#ifndef PENSTOCK_H_
#define PENSTOCK_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PENSTOCK_API __attribute__((visibility("default")))
#else
#define PENSTOCK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a function or a structure of this header changes. */
#define PENSTOCK_ABI 7

typedef struct penstock_engine penstock_engine;
/* The folder of one training, open and locked (docs/run_format.md). */
typedef struct penstock_run penstock_run;

typedef enum penstock_code {
  PENSTOCK_OK = 0,
  PENSTOCK_INVALID_ARGUMENT = 1, /* an argument, the configuration or the order of calls is wrong */
  PENSTOCK_BUDGET = 2,           /* a memory budget is too small; the message has the smallest */
  PENSTOCK_NOT_FOUND = 3,
  PENSTOCK_PERMISSION = 4,
  PENSTOCK_OUT_OF_SPACE = 5,
  PENSTOCK_OUT_OF_MEMORY = 6,
  PENSTOCK_IO = 7,
  PENSTOCK_UNAVAILABLE = 8, /* not offered here, or in use by another process */
  PENSTOCK_CORRUPTION = 9,  /* a checksum or a format is wrong */
  PENSTOCK_NUMERIC = 10,    /* values that are not finite, where they cannot be skipped */
  PENSTOCK_CANCELLED = 11,
  PENSTOCK_INTERNAL = 12 /* a library that penstock uses threw an exception */
} penstock_code;

typedef enum penstock_dtype {
  PENSTOCK_FLOAT32 = 0,
  PENSTOCK_BFLOAT16 = 1,
  PENSTOCK_FLOAT16 = 2
} penstock_dtype;

/* The purpose of a use. The uses of a step, forward and backward, are recorded to plan the next
 * step. Uses aside (evaluation, export) are served at any time, and not recorded. */
typedef enum penstock_use_kind {
  PENSTOCK_FORWARD = 0,
  PENSTOCK_BACKWARD = 1,
  PENSTOCK_ASIDE = 2
} penstock_use_kind;

/* The states of each element, as fp32. The rule decides which moments exist. */
typedef enum penstock_state_kind {
  PENSTOCK_MASTER = 0, /* of a frozen tensor: its weight */
  PENSTOCK_EXP_AVG = 1,
  PENSTOCK_EXP_AVG_SQ = 2
} penstock_state_kind;

/* The scalars of one parameter group in one step. A rule ignores scalars that it does not have:
 * Adagrad the betas, Lion eps. */
typedef struct penstock_group {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
} penstock_group;

typedef struct penstock_outcome {
  uint64_t step;            /* counts all steps, from 1 */
  uint64_t optimizer_steps; /* those that were not skipped: the rule's t */
  double grad_norm;         /* without the loss scale, before clipping; may be non-finite */
  int32_t skipped;          /* 1: loss or gradient was not finite, and nothing changed */
  uint32_t notices;         /* how many lines penstock_step_notices has */
} penstock_outcome;

/* The states of a tensor, as fp32. An address is NULL if the rule has no such moment; a frozen
 * tensor has only the master, which is its weight. */
typedef struct penstock_states {
  const float* master;
  const float* exp_avg;
  const float* exp_avg_sq;
} penstock_states;

/* Elements of plain memory, as penstock_reference_update changes them. An address is NULL if there
 * is no such plane. */
typedef struct penstock_elements {
  uint64_t count;
  void* weight;   /* of weight_dtype */
  int16_t* lo;    /* of a bf16 weight: the lower halves of its fp32 master */
  float* master;  /* of an fp16 weight */
  float* exp_avg; /* as the rule has them */
  float* exp_avg_sq;
  const void* gradient; /* of weight_dtype */
  int32_t weight_dtype; /* penstock_dtype */
} penstock_elements;

/* Returns PENSTOCK_ABI of the library. */
PENSTOCK_API int penstock_abi(void);
/* Returns the library's version, as in "0.1.0". */
PENSTOCK_API const char* penstock_version(void);
/* Returns the message of this thread's last call that failed; valid until the next one fails. */
PENSTOCK_API const char* penstock_error(void);
/* Frees a text that a function returned through `char**`. */
PENSTOCK_API void penstock_free(char* text);

/* `config`: a DeepSpeed configuration (docs/config.md). `model`: units, tensors and groups.
 * `options`: folders, memory, a commit to resume. docs/c_api.md has both formats.
 *
 * Makes the files and takes all memory that the engine will ever take. */
PENSTOCK_API int penstock_create(const char* config, const char* model, const char* options,
                                 penstock_engine** engine);
/* Writes the memory and files that penstock_create would take, as JSON, and takes nothing. Sets
 * `*json` even if the budget is too small; the JSON then says so. */
PENSTOCK_API int penstock_plan(const char* config, const char* model, const char* options,
                               char** json);
/* Ends updates under way and frees everything. Does not commit. NULL is allowed. */
PENSTOCK_API void penstock_close(penstock_engine* engine);
/* Writes layout, files, budgets, counts and notices, as JSON. */
PENSTOCK_API int penstock_describe(penstock_engine* engine, char** json);
/* Writes the counters since the engine was made, as JSON. */
PENSTOCK_API int penstock_counters(penstock_engine* engine, char** json);

/* Sets a unit's weights, before the first step of an engine that resumes no commit. `tensors`: for
 * each tensor of the unit its elements, contiguous, of the dtype of its group. Every unit has to be
 * filled once. */
PENSTOCK_API int penstock_fill(penstock_engine* engine, uint32_t unit, const void* const* tensors);
/* Sets a unit's weights and moments in place of penstock_fill, for a training that was begun
 * elsewhere. `tensors`: the states of each tensor of the unit. Moments must be finite. */
PENSTOCK_API int penstock_fill_states(penstock_engine* engine, uint32_t unit,
                                      const penstock_states* tensors);
/* Says how many steps were made elsewhere, and how many of them were not skipped. Before the first
 * step of an engine that resumes no commit. */
PENSTOCK_API int penstock_begin_at(penstock_engine* engine, uint64_t step,
                                   uint64_t optimizer_steps);

/* Says that a unit is used, and copies its current weights to `to`, which has `bytes` of the unit;
 * NULL: the caller still has them from an earlier use of this step. Waits for the unit's update. */
PENSTOCK_API int penstock_use(penstock_engine* engine, uint32_t unit, int kind, void* to);
/* As penstock_use, with each tensor of the unit in its own memory: `tensors` has their addresses,
 * none of them NULL. (A caller that still has the weights calls penstock_use with NULL.) */
PENSTOCK_API int penstock_use_tensors(penstock_engine* engine, uint32_t unit, int kind,
                                      void* const* tensors);
/* Adds the gradient of a micro-batch to a trained tensor's. `values`: as many elements as the
 * tensor has, contiguous; NULL: zeros. Sums of several micro-batches are fp32, in the order of the
 * calls, and rounded once to the dtype of the weight. */
PENSTOCK_API int penstock_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                                   const void* values, int dtype);
/* Copies what the gradients of a tensor add up to so far in this step, as fp32. */
PENSTOCK_API int penstock_read_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                                        float* to);
/* Puts another gradient in the place of that, before the norm is taken. The engine was made with
 * the option "holds_gradients". */
PENSTOCK_API int penstock_replace_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                                           const void* values, int dtype);
/* As penstock_use, for weights on a GPU. `to` is memory of a CUDA device, `stream` a CUstream
 * (NULL: the default one). The call uses the stream's context; the calling thread needs none. The
 * copies are enqueued on `stream`; work that reads `to` must be enqueued after them. Waits as
 * penstock_use does, and for copies of other units that hold the staging memory that this one
 * needs. The work before them on `stream` must not wait for anything that the calling thread does
 * later. The engine was made with the option "cuda". */
PENSTOCK_API int penstock_use_on(penstock_engine* engine, uint32_t unit, int kind, void* to,
                                 void* stream);
/* As penstock_use_on, with each tensor of the unit in memory of its own on the GPU. `tensors`
 * itself is memory of the host, and is not used after the call returns. */
PENSTOCK_API int penstock_use_tensors_on(penstock_engine* engine, uint32_t unit, int kind,
                                         void* const* tensors, void* stream);
/* As penstock_gradient, for a gradient on a GPU, whose computation was enqueued on `stream` before;
 * NULL values: zeros. The copies are enqueued on `stream`, and `values` must not change until these
 * have completed. Waits for the unit's last update, and while the buffer for arriving gradients is
 * full. penstock_norm, penstock_end_step and penstock_drop_step wait for all copies of the step, in
 * both directions. */
PENSTOCK_API int penstock_gradient_on(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                                      const void* values, int dtype, void* stream);
/* Reports the mean loss of the step's forward, once a step and before it ends: for each step or for
 * none, as the option "reports_loss" says or, without it, as the first step does. A non-finite loss
 * skips the step and puts the newest commit in doubt; a finite loss confirms it. While a commit is
 * in doubt and unconfirmed, penstock_begin_commit fails with PENSTOCK_NUMERIC. After two non-finite
 * losses in a row no step begins. The loss of a dropped step counts in the same way.
 *
 * Steps of a run that report their loss have rows in its metrics.jsonl, and their numbers are
 * monitored (docs/c_api.md, "Rows"). */
PENSTOCK_API int penstock_report_loss(penstock_engine* engine, double loss);
/* Gives the open step's loss, or that of the next step, to the files of csv_monitor alone, where
 * steps report none. It neither skips a step nor confirms a commit. */
PENSTOCK_API int penstock_note_loss(penstock_engine* engine, double loss);
/* Writes, as a JSON array, the lines for the user that were not written before: findings about the
 * numbers of the steps, and what could not be written into the run's folder. Of more than 1000 the
 * newest are kept. */
PENSTOCK_API int penstock_step_notices(penstock_engine* engine, char** json);
/* Writes the factor for the loss of the open step before its backward, or of the next step if none
 * is open: with the option "scales_loss" the engine's loss scale, static or dynamic as in the
 * configuration's fp16; else 1. */
PENSTOCK_API int penstock_loss_scale(penstock_engine* engine, double* scale);
/* Waits until the norm of the step's gradient is known: of all gradients as given, including the
 * loss scale. Every trained tensor must have one. More gradients of this step are refused
 * afterwards. */
PENSTOCK_API int penstock_norm(penstock_engine* engine, double* norm, int* finite);
/* Ends the step. `groups`: the scalars of each parameter group that has trained tensors, in the
 * order of the model. `max_norm`: clips to it, 0: the configuration's gradient_clipping. The
 * gradient is divided by `loss_scale`, which is 1 without loss scaling; with the option
 * "scales_loss" give 0 for the engine's. A gradient that is not finite skips the step. Returns when
 * the updates have begun. */
PENSTOCK_API int penstock_end_step(penstock_engine* engine, const penstock_group* groups,
                                   uint32_t count, double max_norm, double loss_scale,
                                   penstock_outcome* outcome);
/* Ends the step as one that is skipped, because the caller has found a gradient not finite, as a
 * scaler of losses does: it counts, has a row, and changes nothing. Gradients need not be given.
 * `lr`: of the first group, and `loss_scale`, as penstock_end_step takes it, are for the row. The
 * outcome's grad_norm is infinite. */
PENSTOCK_API int penstock_skip_step(penstock_engine* engine, double lr, double loss_scale,
                                    penstock_outcome* outcome);
/* Drops the gradients and the order of the step that is under way, if any: nothing changed. */
PENSTOCK_API int penstock_drop_step(penstock_engine* engine);
/* Waits until all updates are written. */
PENSTOCK_API int penstock_drain(penstock_engine* engine);

/* Begins to make the state durable as the last step left it, together with `json`, the caller's own
 * text of at most 63 KiB (in a run: see penstock_create_in). May be called within a step, which may
 * continue meanwhile; the end of a step waits for the commit. */
PENSTOCK_API int penstock_begin_commit(penstock_engine* engine, const char* json);
/* Waits for the commit that was begun, if any: then it is durable, or the call says why not. */
PENSTOCK_API int penstock_finish_commit(penstock_engine* engine);
/* For the end of a training whose steps report losses: takes the newest commit back if it is in
 * doubt and there is an earlier one, which is then the newest again. `*taken_back`: 1 if it did;
 * then `*step` is the step of the removed commit, and the engine has ended. */
PENSTOCK_API int penstock_take_back_commit(penstock_engine* engine, int* taken_back,
                                           uint64_t* step);
/* Names the folder in which the caller keeps the paths of the state, and those of its files that
 * must not change; replaces an earlier call. From now on a commit counts only if the path still
 * leads to that folder and the files are still in it: penstock_finish_commit and all calls after it
 * fail with PENSTOCK_NOT_FOUND otherwise, naming what is gone. */
PENSTOCK_API int penstock_watch(penstock_engine* engine, const char* folder,
                                const char* const* names, uint32_t count);
/* Verifies the last commit and copies it into files of its own, durable when the call returns: one
 * path for each of `state_paths`, in their order, which does not exist yet. On a file system with
 * reflinks the copy takes no space until training changes what it shares. Another engine can resume
 * from the copy, in any folder. With "durable": false no step may have ended since the commit. */
PENSTOCK_API int penstock_copy_commit(penstock_engine* engine, const char* const* paths,
                                      uint32_t count);
/* Writes the text of the commit from which the engine resumed; PENSTOCK_NOT_FOUND if none. */
PENSTOCK_API int penstock_continued(penstock_engine* engine, char** json);

/* Opens the run that is in a folder, or begins one there. `options`: the folder, the kind of the
 * run, and where its state files go (docs/c_api.md, "Runs"). Without a folder the run is temporary:
 * it has a folder of its own in the first `nvme_path`.
 *
 * Takes the run's lock, which `*run` holds until it is closed: PENSTOCK_UNAVAILABLE if another
 * process, or this one, has the run open. Then removes files that an earlier process left without a
 * commit. Runs of another kind are refused (PENSTOCK_INVALID_ARGUMENT) and unchanged. */
PENSTOCK_API int penstock_open_run(const char* options, penstock_run** run);
/* Removes files without a commit, and a run that has none; then ends the lock and frees `run`, also
 * if a failure is returned. While the run's engine is open, that is left to its penstock_close,
 * which returns no failure: the next penstock_open_run sees to what is left. NULL is allowed. */
PENSTOCK_API int penstock_close_run(penstock_run* run);
/* Writes the run's kind, state and snapshots, as JSON. */
PENSTOCK_API int penstock_describe_run(penstock_run* run, char** json);
/* Writes the same of the run in a folder, without a lock. PENSTOCK_NOT_FOUND: there is no run. */
PENSTOCK_API int penstock_read_run(const char* folder, char** json);
/* As penstock_create, for the training of a run, which resumes from the run's last commit, if any.
 * `options` name no folders and no files to resume from; they have the values in which a commit
 * must agree, and may name a snapshot to resume from. One engine at a time. `run` stays the
 * caller's.
 *
 * A commit of this engine has the caller's text beside the run's own part: a JSON object, which has
 * at most 256 MiB. penstock_finish_commit returns when the run names the commit. It fails with
 * PENSTOCK_NOT_FOUND, and so does every call after it, if the run's folder or its run.json was
 * removed, moved or replaced meanwhile. Any other failure may be followed by another attempt. */
PENSTOCK_API int penstock_create_in(penstock_run* run, const char* config, const char* model,
                                    const char* options, penstock_engine** engine);
/* Copies the last commit of an engine of a run into a new folder, as penstock_copy_commit does, and
 * writes the folder's path. `name` without a slash: a snapshot of the run, in RUN/snapshots. With
 * one: a path, at which the copy becomes a run of its own. */
PENSTOCK_API int penstock_snapshot(penstock_engine* engine, const char* name, char** folder);

/* Reads elements [begin, begin + count) of one state of a tensor, exactly, as the last step left
 * it. Reading a unit's tensors in the order of their offsets reads each tile once. */
PENSTOCK_API int penstock_read(penstock_engine* engine, uint32_t unit, uint32_t tensor, int kind,
                               uint64_t begin, uint64_t count, float* to);

/* The rule on plain memory, with the engine's own bits: update number `t` (from 1) of the elements,
 * by the rule of `config`, with the gradient times `grad_scale`. */
PENSTOCK_API int penstock_reference_update(const char* config, const penstock_group* group,
                                           uint64_t t, double grad_scale,
                                           const penstock_elements* elements);
/* Adds the squares of a gradient of `count` elements, padded with zeros to a multiple of 4096, in
 * the engine's order: one sum for each 4096 elements, written to `sums`. The norm of a step is the
 * square root of the sum of all blocks, in the order of units and of their flat index. */
PENSTOCK_API int penstock_block_sums(const void* values, int dtype, uint64_t count, double* sums,
                                     int* finite);
/* Writes a checksum of a sample of each of `count` pieces of host memory, `bytes` long: 64 words
 * spread over it. Where two differ, the memory was written; where they do not, most of it was not.
 */
PENSTOCK_API int penstock_fingerprints(const void* const* memory, const uint64_t* bytes,
                                       uint32_t count, uint64_t* fingerprints);

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_H_ */
