/* caches.h - the first-level caches of a Cortex-M7 (Armv7-M Architecture Reference Manual, B2.2.7 and B4.8). */
#ifndef NST_CACHES_H
#define NST_CACHES_H

#ifdef __cplusplus
extern "C" {
#endif

/* Invalidate and enable both; memory that a restart must keep (.noinit) belongs where no cache is, in TCM. */
void nst_caches_start(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_CACHES_H */
