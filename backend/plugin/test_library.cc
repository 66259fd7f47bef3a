// Shared libraries that are no plug-ins, one for each value of FATHOM_TEST_LIBRARY.
#define FATHOM_TEST_EXPORT extern "C" __attribute__((visibility("default")))

#if FATHOM_TEST_LIBRARY == 1  // another library
FATHOM_TEST_EXPORT const int something_else = 1;
#elif FATHOM_TEST_LIBRARY == 2  // a function of that name
FATHOM_TEST_EXPORT int fathom_backend_table() { return 1; }
#elif FATHOM_TEST_LIBRARY == 3  // too small to have a version
FATHOM_TEST_EXPORT const int fathom_backend_table = 1;
#elif FATHOM_TEST_LIBRARY == 4  // says that it is larger than it is
FATHOM_TEST_EXPORT const struct {
  unsigned major, minor;
  unsigned long long struct_size;
} fathom_backend_table = {1, 0, 1 << 20};
#elif FATHOM_TEST_LIBRARY == 5  // needs what is nowhere
extern "C" int fathom_test_that_is_nowhere();
FATHOM_TEST_EXPORT int f() { return fathom_test_that_is_nowhere(); }
#elif FATHOM_TEST_LIBRARY == 6  // of a later version, whose table might begin with anything else
FATHOM_TEST_EXPORT const struct {
  unsigned major, minor;
  unsigned long long struct_size;
} fathom_backend_table = {2, 7, 16};
#endif
