/* Trains a small model in C, with its optimizer states and weights on a drive.
 *
 *   train FOLDER STEPS        FOLDER: on the drive; it has the states of earlier calls
 *
 * The model: y = W2 tanh(W1 x), one example after another, squared error. A program that computes
 * its own gradients needs nothing else: it names the weights it uses, and hands over gradients.
 * Run it twice: the second run resumes from the first one's commit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <penstock.h>

enum { INPUTS = 16, HIDDEN = 64, OUTPUTS = 4, EXAMPLES = 32 };

static const char kModel[] =
    "{\"groups\": [{\"name\": \"all\", \"dtype\": \"fp32\"}],"
    " \"units\": [{\"name\": \"first\", \"tensors\": [{\"name\": \"w1\", \"shape\": [64, 16]}]},"
    "             {\"name\": \"second\", \"tensors\": [{\"name\": \"w2\", \"shape\": [4, 64]}]}]}";

static void check(int code) {
  if (code == PENSTOCK_OK) return;
  fprintf(stderr, "train: error: %s\n", penstock_error());
  exit(code == PENSTOCK_INVALID_ARGUMENT || code == PENSTOCK_BUDGET ? 2 : 3);
}

/* A number in [-0.5, 0.5) that depends only on i. */
static float noise(unsigned i) {
  i = (i ^ 61) ^ (i >> 16);
  i *= 9;
  i = (i ^ (i >> 4)) * 0x27d4eb2d;
  return (float)(i >> 8) / (1 << 24) - 0.5F;
}

/* The loss of an example; adds its gradients. */
static double backpropagate(unsigned example, const float* w1, const float* w2, float* d1,
                            float* d2) {
  float x[INPUTS], hidden[HIDDEN], d_hidden[HIDDEN] = {0};
  double loss = 0;
  for (int i = 0; i < INPUTS; ++i) x[i] = noise(1000 * example + i);
  for (int j = 0; j < HIDDEN; ++j) {
    float sum = 0;
    for (int i = 0; i < INPUTS; ++i) sum += w1[j * INPUTS + i] * x[i];
    hidden[j] = tanhf(sum);
  }
  for (int k = 0; k < OUTPUTS; ++k) {
    float error = -sinf(4 * x[k]);
    for (int j = 0; j < HIDDEN; ++j) error += w2[k * HIDDEN + j] * hidden[j];
    loss += 0.5 * error * error / EXAMPLES;
    for (int j = 0; j < HIDDEN; ++j) {
      d2[k * HIDDEN + j] += error * hidden[j] / EXAMPLES;
      d_hidden[j] += error * w2[k * HIDDEN + j] / EXAMPLES;
    }
  }
  for (int j = 0; j < HIDDEN; ++j) {
    const float d_sum = d_hidden[j] * (1 - hidden[j] * hidden[j]);
    for (int i = 0; i < INPUTS; ++i) d1[j * INPUTS + i] += d_sum * x[i];
  }
  return loss;
}

/* Reads the path of the state that an earlier run recorded, if there is one. */
static int noted(const char* name, char* path, size_t size) {
  FILE* file = fopen(name, "r");
  if (file == NULL) return 0;
  const int found = fgets(path, (int)size, file) != NULL;
  fclose(file);
  if (found) path[strcspn(path, "\n")] = '\0';
  return found;
}

/* Records the path of the state file, which is in quotes after "state_paths":[. */
static void note(const char* name, const char* description) {
  const char* path = strstr(description, "\"state_paths\":[\"");
  FILE* file = fopen(name, "w");
  if (path == NULL || file == NULL) {
    fprintf(stderr, "train: error: %s cannot be written\n", name);
    exit(3);
  }
  path += strlen("\"state_paths\":[\"");
  fprintf(file, "%.*s\n", (int)strcspn(path, "\""), path);
  fclose(file);
}

int main(int argc, char** argv) {
  if (argc != 3 || strlen(argv[1]) > 900 || strpbrk(argv[1], "\"\\") != NULL) {
    fprintf(stderr, "train: error: usage: train FOLDER STEPS\n");
    return 2;
  }
  char config[4096], options[4096], name[1024], state[1024];
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\": 1,"
           " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
           " \"zero_optimization\": {\"stage\": 3,"
           "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
           "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}",
           argv[1], argv[1]);
  snprintf(name, sizeof name, "%s/state", argv[1]);
  const int again = noted(name, state, sizeof state);
  snprintf(options, sizeof options, "{\"folders\": [\"%s\"]%s%s%s}", argv[1],
           again ? ", \"continue\": [\"" : "", again ? state : "", again ? "\"]" : "");

  penstock_engine* engine = NULL;
  char* description = NULL;
  check(penstock_create(config, kModel, options, &engine));
  /* A unit's buffer ends on a block of 4096 elements. */
  static float w1[4096], w2[4096], d1[HIDDEN * INPUTS], d2[OUTPUTS * HIDDEN];
  if (!again) {
    for (int i = 0; i < HIDDEN * INPUTS; ++i) w1[i] = noise(i);
    for (int i = 0; i < OUTPUTS * HIDDEN; ++i) w2[i] = noise(7777 + i);
    const void* first[] = {w1};
    const void* second[] = {w2};
    check(penstock_fill(engine, 0, first));
    check(penstock_fill(engine, 1, second));
  }
  const penstock_group group = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  for (int step = 0; step < atoi(argv[2]); ++step) {
    check(penstock_use(engine, 0, PENSTOCK_FORWARD, w1));
    check(penstock_use(engine, 1, PENSTOCK_FORWARD, w2));
    memset(d1, 0, sizeof d1);
    memset(d2, 0, sizeof d2);
    double loss = 0;
    for (unsigned example = 0; example < EXAMPLES; ++example) {
      loss += backpropagate(example, w1, w2, d1, d2);
    }
    /* The weights are still in their buffers. */
    check(penstock_use(engine, 1, PENSTOCK_BACKWARD, NULL));
    check(penstock_gradient(engine, 1, 0, d2, PENSTOCK_FLOAT32));
    check(penstock_use(engine, 0, PENSTOCK_BACKWARD, NULL));
    check(penstock_gradient(engine, 0, 0, d1, PENSTOCK_FLOAT32));
    penstock_outcome outcome;
    check(penstock_end_step(engine, &group, 1, 0, 1, &outcome));
    printf("step %llu loss %.9g grad_norm %.9g\n", (unsigned long long)outcome.step, loss,
           outcome.grad_norm);
  }
  check(penstock_begin_commit(engine, "{}"));
  check(penstock_finish_commit(engine));
  check(penstock_describe(engine, &description));
  note(name, description);
  penstock_free(description);
  penstock_close(engine);
  return 0;
}
