/* What shm_pair.c is compiled with for test_shm_pair.c: before each look at a word and after each
 * store to it, the test may let the rank wait. */
#ifndef UNIT_GROUP_SHM_PAIR_DELAYS_H
#define UNIT_GROUP_SHM_PAIR_DELAYS_H

void shm_pair_before_look(const void *word);
void shm_pair_after_store(const void *word);

#define __atomic_load_n(word, order) (shm_pair_before_look(word), __atomic_load_n(word, order))
#define __atomic_store_n(word, v, order)                                                           \
    (__atomic_store_n(word, v, order), shm_pair_after_store(word))

#endif
