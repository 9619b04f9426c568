// Opens libmolt at run time: Go never links it, so building, vetting and vendoring work before it exists.
#include "molt.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static char** err; // what the functions without such a parameter see

static int closed(const void* function, char** err) {
  if (!function && err) *err = strdup("libmolt is not open: work with tensors inside torch.Do");
  return !function;
}

#define X(R, N, P, A)                             \
  static R(*p_##N) P;                             \
  R N P {                                         \
    return closed(p_##N, err) ? (R){0} : p_##N A; \
  }
MT_FUNCTIONS(X)
#undef X

// molt_open binds every function of the library at path; it returns an error message that stays valid, or NULL. A library that was
// opened stays: it has registered its operators, and another one beside it would do so again. *opened tells.
const char* molt_open(const char* path, const char* abi, int* opened) {
  static char message[512];
  void* lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) return dlerror();
  *opened = 1;
  if (!(*(void**)&p_mt_abi = dlsym(lib, "mt_abi"))) return "it lacks the function mt_abi: it is no libmolt";
  if (strcmp(p_mt_abi(), abi) != 0) {
    snprintf(message, sizeof message, "it was built for another version of torch/molt.h (%.12s, not %.12s)", p_mt_abi(), abi);
    return message;
  }
#define X(R, N, P, A) \
  if (!(*(void**)&p_##N = dlsym(lib, #N))) return "it lacks the function " #N;
  MT_FUNCTIONS(X)
#undef X
  return NULL;
}
