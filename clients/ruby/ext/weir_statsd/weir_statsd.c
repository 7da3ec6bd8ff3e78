/*
 * The hot parts of the client: finding the cell of a context, adding to it, and writing numbers as text.
 *
 * Everything here runs under the global interpreter lock, and no function lets go of it between reading
 * and writing a cell. Cells are therefore shared by all threads. Whatever is not a plain case returns to
 * the Ruby code, which is complete without this file.
 */
#include <math.h>
#include <ruby.h>
#include <ruby/encoding.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static VALUE wire;
static ID id_exact, id_number, id_plus, id_flush_cell, id_deliver, id_abandoned, id_max_values, id_put;
static VALUE void_value;
static uint64_t last_stamp;

/* ---- cells ------------------------------------------------------------------------------------- */

struct cell {
  VALUE template_, table, tags, core;
  long idle;
  bool expired, removed, bound;
  /* Counters: what fits into a word, and the rest. */
  int64_t sum;
  VALUE big_sum;
  long hits;
  /* Gauges. */
  VALUE value;
  uint64_t stamp;
  /* Samples. */
  VALUE *values;
  size_t count, capacity, limit, max_values;
};

static void cell_mark(void *data) {
  struct cell *cell = data;
  rb_gc_mark(cell->template_);
  rb_gc_mark(cell->table);
  rb_gc_mark(cell->tags);
  rb_gc_mark(cell->core);
  rb_gc_mark(cell->big_sum);
  rb_gc_mark(cell->value);
  for (size_t i = 0; i < cell->count; i++) rb_gc_mark(cell->values[i]);
}

static void cell_free(void *data) {
  struct cell *cell = data;
  xfree(cell->values);
  xfree(cell);
}

static size_t cell_size(const void *data) {
  const struct cell *cell = data;
  return sizeof(*cell) + cell->capacity * sizeof(VALUE);
}

static const rb_data_type_t cell_type = {
    .wrap_struct_name = "weir cell",
    .function = {.dmark = cell_mark, .dfree = cell_free, .dsize = cell_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct cell *get_cell(VALUE self) {
  struct cell *cell;
  TypedData_Get_Struct(self, struct cell, &cell_type, cell);
  return cell;
}

static void cell_clear(struct cell *cell) {
  cell->sum = 0;
  cell->big_sum = INT2FIX(0);
  cell->hits = 0;
  cell->value = Qnil;
  cell->stamp = 0;
  cell->count = 0;
}

static VALUE cell_alloc(VALUE klass) {
  struct cell *cell;
  VALUE self = TypedData_Make_Struct(klass, struct cell, &cell_type, cell);
  cell->template_ = cell->table = cell->tags = cell->core = Qnil;
  cell->limit = cell->max_values = SIZE_MAX;
  cell_clear(cell);
  return self;
}

static void set_core(struct cell *cell, VALUE core) {
  cell->core = core;
  if (!NIL_P(core)) cell->limit = cell->max_values = NUM2SIZET(rb_funcall(core, id_max_values, 0));
}

static VALUE cell_initialize(int argc, VALUE *argv, VALUE self) {
  VALUE template_, table, core;
  rb_scan_args(argc, argv, "21", &template_, &table, &core);
  struct cell *cell = get_cell(self);
  cell->template_ = template_;
  cell->table = table;
  set_core(cell, core);
  return self;
}

#define READER(name, expression) \
  static VALUE cell_##name(VALUE self) { struct cell *cell = get_cell(self); return expression; }
#define WRITER(name, statement) \
  static VALUE cell_set_##name(VALUE self, VALUE value) { struct cell *cell = get_cell(self); statement; return value; }

READER(template, cell->template_)
WRITER(template, cell->template_ = value)
READER(table, cell->table)
READER(tags, cell->tags)
WRITER(tags, cell->tags = value)
WRITER(core, set_core(cell, value))
READER(idle, LONG2NUM(cell->idle))
WRITER(idle, cell->idle = NUM2LONG(value))
READER(expired, cell->expired ? Qtrue : Qfalse)
WRITER(expired, cell->expired = RTEST(value))
READER(removed, cell->removed ? Qtrue : Qfalse)
WRITER(removed, cell->removed = RTEST(value))
READER(bound, cell->bound ? Qtrue : Qfalse)
WRITER(bound, cell->bound = RTEST(value))
READER(value, cell->value)
READER(stamp, ULL2NUM(cell->stamp))

static VALUE cell_abandoned(VALUE self) {
  struct cell *cell = get_cell(self);
  if (cell->removed) return Qtrue;
  return NIL_P(cell->table) ? Qfalse : rb_funcall(cell->table, id_abandoned, 0);
}

static VALUE cell_reset(VALUE self) {
  struct cell *cell = get_cell(self);
  cell_clear(cell);
  cell->limit = cell->max_values;
  return self;
}

/* false when the value cannot be sent; the sums stay exact whatever the type. */
static VALUE counter_add(struct cell *cell, VALUE value) {
  if (FIXNUM_P(value)) {
    int64_t sum;
    if (!__builtin_add_overflow(cell->sum, (int64_t)FIX2LONG(value), &sum)) {
      cell->sum = sum;
      cell->hits++;
      return Qtrue;
    }
  }
  value = rb_funcall(wire, id_exact, 1, value);
  if (NIL_P(value)) return Qfalse;
  cell->big_sum = rb_funcall(cell->big_sum, id_plus, 1, value);
  cell->hits++;
  return Qtrue;
}

static VALUE counter_put(VALUE self, VALUE value) { return counter_add(get_cell(self), value); }

static VALUE counter_take(VALUE self) {
  struct cell *cell = get_cell(self);
  VALUE sum = LL2NUM(cell->sum);
  if (cell->big_sum != INT2FIX(0)) sum = rb_funcall(cell->big_sum, id_plus, 1, sum);
  VALUE taken = rb_assoc_new(LONG2NUM(cell->hits), sum);
  cell->sum = 0;
  cell->big_sum = INT2FIX(0);
  cell->hits = 0;
  return taken;
}

static bool plain_number(VALUE value) {
  return FIXNUM_P(value) || (RB_FLOAT_TYPE_P(value) && isfinite(RFLOAT_VALUE(value)));
}

static VALUE gauge_set(struct cell *cell, VALUE value) {
  if (!plain_number(value)) {
    value = rb_funcall(wire, id_number, 1, value);
    if (NIL_P(value)) return Qfalse;
  }
  cell->value = value;
  cell->stamp = ++last_stamp;
  cell->hits++;
  return Qtrue;
}

static VALUE gauge_put(VALUE self, VALUE value) { return gauge_set(get_cell(self), value); }

static VALUE gauge_take(VALUE self) {
  struct cell *cell = get_cell(self);
  VALUE hits = LONG2NUM(cell->hits);
  cell->hits = 0;
  return hits;
}

static VALUE samples_add(VALUE self, struct cell *cell, VALUE value) {
  if (!FIXNUM_P(value) && !RB_FLOAT_TYPE_P(value)) {
    value = rb_funcall(wire, id_number, 1, value);
    if (NIL_P(value)) return Qfalse;
  }
  if (cell->count == cell->capacity) {
    cell->capacity = cell->capacity ? cell->capacity * 2 : 8;
    REALLOC_N(cell->values, VALUE, cell->capacity);
  }
  cell->values[cell->count++] = value;
  if (cell->count >= cell->limit) {
    rb_funcall(cell->core, id_flush_cell, 1, self);
    /* A flush that is just running has not taken them: ask again when there are twice as many. */
    if (cell->count >= cell->limit) cell->limit = cell->count * 2;
  }
  return Qtrue;
}

static VALUE samples_put(VALUE self, VALUE value) { return samples_add(self, get_cell(self), value); }

static VALUE samples_take(VALUE self) {
  struct cell *cell = get_cell(self);
  VALUE taken = rb_ary_new_from_values((long)cell->count, cell->values);
  cell->count = 0;
  cell->limit = cell->max_values;
  return taken;
}

/* ---- handles ------------------------------------------------------------------------------------ */

static VALUE handle_increment(int argc, VALUE *argv, VALUE self) {
  VALUE value;
  if (rb_scan_args(argc, argv, "01", &value) == 0) value = INT2FIX(1);
  struct cell *cell = get_cell(self);
  if (cell->bound && FIXNUM_P(value) && counter_add(cell, value) == Qtrue) return void_value;
  return rb_funcall(self, id_deliver, 1, value);
}

static VALUE handle_set(VALUE self, VALUE value) {
  struct cell *cell = get_cell(self);
  if (cell->bound && plain_number(value)) {
    gauge_set(cell, value);
    return void_value;
  }
  return rb_funcall(self, id_deliver, 1, value);
}

static VALUE handle_record(VALUE self, VALUE value) {
  struct cell *cell = get_cell(self);
  if (cell->bound && plain_number(value)) {
    samples_add(self, cell, value);
    return void_value;
  }
  return rb_funcall(self, id_deliver, 1, value);
}

/* ---- shelves ------------------------------------------------------------------------------------ */

enum form { FORM_NONE, FORM_ARRAY, FORM_HASH, FORM_ONE };

struct entry {
  struct entry *next;
  uint64_t hash;
  VALUE name, cell_object;
  struct cell *cell;
  enum form form;
  long length;
  VALUE tags[];
};

struct shelf {
  struct entry **buckets;
  size_t bucket_count, entry_count;
  int kind; /* c counters, g gauges, m samples, e emitters: Ruby objects that send each value */
};

static void shelf_mark(void *data) {
  struct shelf *shelf = data;
  for (size_t i = 0; i < shelf->bucket_count; i++) {
    for (struct entry *entry = shelf->buckets[i]; entry; entry = entry->next) {
      rb_gc_mark(entry->name);
      rb_gc_mark(entry->cell_object);
      for (long j = 0; j < entry->length; j++) rb_gc_mark(entry->tags[j]);
    }
  }
}

static void shelf_free(void *data) {
  struct shelf *shelf = data;
  for (size_t i = 0; i < shelf->bucket_count; i++) {
    struct entry *entry = shelf->buckets[i];
    while (entry) {
      struct entry *next = entry->next;
      xfree(entry);
      entry = next;
    }
  }
  xfree(shelf->buckets);
  xfree(shelf);
}

static size_t shelf_size(const void *data) {
  const struct shelf *shelf = data;
  return sizeof(*shelf) + shelf->bucket_count * sizeof(struct entry *) + shelf->entry_count * sizeof(struct entry);
}

static const rb_data_type_t shelf_type = {
    .wrap_struct_name = "weir shelf",
    .function = {.dmark = shelf_mark, .dfree = shelf_free, .dsize = shelf_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct shelf *get_shelf(VALUE self) {
  struct shelf *shelf;
  TypedData_Get_Struct(self, struct shelf, &shelf_type, shelf);
  return shelf;
}

static VALUE shelf_alloc(VALUE klass) {
  struct shelf *shelf;
  VALUE self = TypedData_Make_Struct(klass, struct shelf, &shelf_type, shelf);
  shelf->buckets = ZALLOC_N(struct entry *, 16);
  shelf->bucket_count = 16;
  return self;
}

static VALUE shelf_initialize(VALUE self, VALUE kind) {
  get_shelf(self)->kind = NUM2INT(kind);
  return self;
}

static inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
  return hash ^ (hash >> 29);
}

/* Only values whose text cannot change behind our back take part; for others the caller does without. */
static inline bool hash_value(VALUE value, uint64_t *hash) {
  if (RB_SPECIAL_CONST_P(value)) {
    *hash = mix(*hash, (uint64_t)value);
    return true;
  }
  switch (RB_BUILTIN_TYPE(value)) {
    case T_STRING:
      *hash = mix(*hash, rb_memhash(RSTRING_PTR(value), RSTRING_LEN(value)));
      return true;
    case T_SYMBOL:
      *hash = mix(*hash, (uint64_t)value);
      return true;
    default:
      return false;
  }
}

static inline bool same_value(VALUE kept, VALUE given) {
  if (kept == given) return true;
  if (RB_SPECIAL_CONST_P(kept) || RB_SPECIAL_CONST_P(given)) return false;
  if (!RB_TYPE_P(kept, T_STRING) || !RB_TYPE_P(given, T_STRING)) return false;
  long length = RSTRING_LEN(kept);
  return length == RSTRING_LEN(given) && memcmp(RSTRING_PTR(kept), RSTRING_PTR(given), length) == 0 &&
         rb_enc_get_index(kept) == rb_enc_get_index(given);
}

struct walk {
  uint64_t hash;
  bool usable;
  const struct entry *entry;
  VALUE into;
  long position;
};

static int hash_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  walk->usable = hash_value(key, &walk->hash) && hash_value(value, &walk->hash);
  return walk->usable ? ST_CONTINUE : ST_STOP;
}

static int same_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  const VALUE *kept = walk->entry->tags + walk->position;
  walk->usable = same_value(kept[0], key) && same_value(kept[1], value);
  walk->position += 2;
  return walk->usable ? ST_CONTINUE : ST_STOP;
}

static VALUE frozen(VALUE value) { return RB_TYPE_P(value, T_STRING) ? rb_str_new_frozen(value) : value; }

static int copy_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  rb_ary_push(walk->into, frozen(key));
  rb_ary_push(walk->into, frozen(value));
  return ST_CONTINUE;
}

/* The order of tags takes part: the same tags in another order are another entry with its own cell, and
 * the cells are merged when they are flushed. */
static bool hash_context(VALUE name, VALUE tags, enum form *form, uint64_t *hash) {
  *hash = 0;
  if (!hash_value(name, hash)) return false;
  if (NIL_P(tags)) {
    *form = FORM_NONE;
    return true;
  }
  if (!RB_SPECIAL_CONST_P(tags)) {
    if (RB_BUILTIN_TYPE(tags) == T_HASH) {
      struct walk walk = {.hash = mix(*hash, FORM_HASH), .usable = true};
      *form = FORM_HASH;
      rb_hash_foreach(tags, hash_pair, (VALUE)&walk);
      *hash = walk.hash;
      return walk.usable;
    }
    if (RB_BUILTIN_TYPE(tags) == T_ARRAY) {
      *form = FORM_ARRAY;
      *hash = mix(*hash, FORM_ARRAY);
      for (long i = 0; i < RARRAY_LEN(tags); i++) {
        if (!hash_value(RARRAY_AREF(tags, i), hash)) return false;
      }
      return true;
    }
  }
  *form = FORM_ONE;
  *hash = mix(*hash, FORM_ONE);
  return (RB_SYMBOL_P(tags) || RB_TYPE_P(tags, T_STRING)) && hash_value(tags, hash);
}

static bool same_tags(const struct entry *entry, VALUE tags) {
  switch (entry->form) {
    case FORM_NONE:
      return true;
    case FORM_ONE:
      return same_value(entry->tags[0], tags);
    case FORM_ARRAY:
      if (RARRAY_LEN(tags) != entry->length) return false;
      for (long i = 0; i < entry->length; i++) {
        if (!same_value(entry->tags[i], RARRAY_AREF(tags, i))) return false;
      }
      return true;
    default: {
      if ((long)RHASH_SIZE(tags) * 2 != entry->length) return false;
      struct walk walk = {.usable = true, .entry = entry};
      rb_hash_foreach(tags, same_pair, (VALUE)&walk);
      return walk.usable;
    }
  }
}

static struct entry *find(struct shelf *shelf, VALUE name, VALUE tags) {
  enum form form;
  uint64_t hash;
  if (!hash_context(name, tags, &form, &hash)) return NULL;
  for (struct entry *entry = shelf->buckets[hash & (shelf->bucket_count - 1)]; entry; entry = entry->next) {
    if (entry->hash == hash && entry->form == form && same_value(entry->name, name) && same_tags(entry, tags)) {
      return entry;
    }
  }
  return NULL;
}

/* true: recorded. false: the value cannot be sent. nil: there is no such context yet. */
static VALUE shelf_put(VALUE self, VALUE name, VALUE tags, VALUE value) {
  struct shelf *shelf = get_shelf(self);
  struct entry *entry = find(shelf, name, tags);
  if (!entry) return Qnil;
  VALUE object = entry->cell_object;
  VALUE done;
  switch (shelf->kind) {
    case 'c': done = counter_add(entry->cell, value); break;
    case 'g': done = gauge_set(entry->cell, value); break;
    case 'e': done = rb_funcall(object, id_put, 1, value); break;
    default: done = samples_add(object, entry->cell, value); break;
  }
  /* Ruby code that ran meanwhile may have removed the entry, but not while we hold its cell. */
  RB_GC_GUARD(object);
  return done;
}

static void grow(struct shelf *shelf) {
  size_t count = shelf->bucket_count * 2;
  struct entry **buckets = ZALLOC_N(struct entry *, count);
  for (size_t i = 0; i < shelf->bucket_count; i++) {
    struct entry *entry = shelf->buckets[i];
    while (entry) {
      struct entry *next = entry->next;
      entry->next = buckets[entry->hash & (count - 1)];
      buckets[entry->hash & (count - 1)] = entry;
      entry = next;
    }
  }
  xfree(shelf->buckets);
  shelf->buckets = buckets;
  shelf->bucket_count = count;
}

/* Stores nothing and returns the cell found if another thread was quicker. */
static VALUE shelf_store(VALUE self, VALUE name, VALUE tags, VALUE cell_object) {
  struct shelf *shelf = get_shelf(self);
  struct entry *found = find(shelf, name, tags);
  if (found) return found->cell_object;
  enum form form;
  uint64_t hash;
  if (!hash_context(name, tags, &form, &hash)) return Qnil;
  long length = form == FORM_NONE ? 0
                : form == FORM_ARRAY ? RARRAY_LEN(tags)
                : form == FORM_HASH ? (long)RHASH_SIZE(tags) * 2 : 1;
  /* Copies are made before the entry exists, because making them can collect garbage. They live in an
   * Array until then. */
  VALUE copies = rb_ary_new_capa(length);
  struct walk walk = {.into = copies};
  if (form == FORM_HASH) {
    rb_hash_foreach(tags, copy_pair, (VALUE)&walk);
  } else {
    for (long i = 0; i < length; i++) {
      rb_ary_push(copies, frozen(form == FORM_ARRAY ? RARRAY_AREF(tags, i) : tags));
    }
  }
  VALUE kept_name = frozen(name);
  struct entry *entry = xmalloc(sizeof(*entry) + (size_t)length * sizeof(VALUE));
  entry->hash = hash;
  entry->name = kept_name;
  entry->cell_object = cell_object;
  entry->cell = shelf->kind == 'e' ? NULL : get_cell(cell_object);
  entry->form = form;
  entry->length = length;
  for (long i = 0; i < length; i++) entry->tags[i] = RARRAY_AREF(copies, i);
  if (shelf->entry_count >= shelf->bucket_count) grow(shelf);
  entry->next = shelf->buckets[hash & (shelf->bucket_count - 1)];
  shelf->buckets[hash & (shelf->bucket_count - 1)] = entry;
  shelf->entry_count++;
  RB_GC_GUARD(copies);
  RB_GC_GUARD(kept_name);
  return cell_object;
}

/* Forgets expired cells; each is marked as removed. */
static VALUE shelf_sweep(VALUE self) {
  struct shelf *shelf = get_shelf(self);
  for (size_t i = 0; i < shelf->bucket_count; i++) {
    struct entry **link = &shelf->buckets[i];
    while (*link) {
      struct entry *entry = *link;
      if (entry->cell && entry->cell->expired) {
        entry->cell->removed = true;
        *link = entry->next;
        xfree(entry);
        shelf->entry_count--;
      } else {
        link = &entry->next;
      }
    }
  }
  return self;
}

static VALUE shelf_length(VALUE self) { return SIZET2NUM(get_shelf(self)->entry_count); }

/* ---- numbers as text ---------------------------------------------------------------------------- */

static char *write_integer(char *at, uint64_t value) {
  char digits[20];
  int count = 0;
  do {
    digits[count++] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  while (count) *at++ = digits[--count];
  return at;
}

/* Writes a float that has at most six decimals, which most have that people measure.
 * Returns NULL for others. The result reads back as the same float. */
static char *write_short_float(char *at, double value) {
  double magnitude = fabs(value);
  if (!(magnitude < 1e9)) return NULL;
  double scaled = magnitude * 1e6;
  uint64_t whole = (uint64_t)(scaled + 0.5);
  if ((double)whole / 1e6 != magnitude) return NULL;
  if (signbit(value)) *at++ = '-';
  at = write_integer(at, whole / 1000000);
  *at++ = '.';
  uint32_t rest = (uint32_t)(whole % 1000000);
  char *end = at + 1;
  for (uint32_t unit = 100000, i = 1; unit; unit /= 10, i++) {
    char digit = (char)('0' + rest / unit % 10);
    *at++ = digit;
    if (digit != '0') end = at;
  }
  return end;
}

/* pack(values) -> text or nil, as Wire.pack */
static VALUE native_pack(VALUE self, VALUE values) {
  Check_Type(values, T_ARRAY);
  VALUE text = rb_str_buf_new(RARRAY_LEN(values) * 10 + 16);
  rb_enc_associate_index(text, rb_utf8_encindex());
  char buffer[512];
  char *at = buffer;
  bool first = true;
  for (long i = 0; i < RARRAY_LEN(values); i++) {
    VALUE value = RARRAY_AREF(values, i);
    char *start = at;
    if (!first) *at++ = ':';
    char *end = NULL;
    if (FIXNUM_P(value)) {
      long number = FIX2LONG(value);
      if (number < 0) *at++ = '-';
      end = write_integer(at, number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number);
    } else if (RB_FLOAT_TYPE_P(value)) {
      end = write_short_float(at, RFLOAT_VALUE(value));
    }
    if (end) {
      at = end;
      first = false;
    } else {
      at = start;
      rb_str_cat(text, buffer, at - buffer);
      at = buffer;
      VALUE number = rb_funcall(wire, id_number, 1, value);
      if (!NIL_P(number)) {
        if (!first) rb_str_cat(text, ":", 1);
        rb_str_append(text, number);
        first = false;
      }
    }
    if (at - buffer > (long)sizeof(buffer) - 64) {
      rb_str_cat(text, buffer, at - buffer);
      at = buffer;
    }
  }
  rb_str_cat(text, buffer, at - buffer);
  return first ? Qnil : text;
}

/* ---- setup -------------------------------------------------------------------------------------- */

void Init_weir_statsd_native(void) {
  VALUE statsd = rb_const_get(rb_cObject, rb_intern("StatsD"));
  VALUE instrument = rb_const_get(statsd, rb_intern("Instrument"));
  wire = rb_const_get(instrument, rb_intern("Wire"));
  void_value = rb_const_get(instrument, rb_intern("VOID"));
  rb_gc_register_mark_object(wire);
  rb_gc_register_mark_object(void_value);
  id_exact = rb_intern("exact");
  id_number = rb_intern("number");
  id_plus = rb_intern("+");
  id_flush_cell = rb_intern("flush_cell");
  id_deliver = rb_intern("deliver");
  id_abandoned = rb_intern("abandoned?");
  id_max_values = rb_intern("max_values");
  id_put = rb_intern("put");

  VALUE native = rb_define_module_under(instrument, "Native");
  rb_define_module_function(native, "pack", native_pack, 1);

  VALUE cell = rb_define_class_under(native, "Cell", rb_cObject);
  rb_define_alloc_func(cell, cell_alloc);
  rb_define_method(cell, "initialize", cell_initialize, -1);
  rb_define_method(cell, "template", cell_template, 0);
  rb_define_method(cell, "template=", cell_set_template, 1);
  rb_define_method(cell, "table", cell_table, 0);
  rb_define_method(cell, "tags", cell_tags, 0);
  rb_define_method(cell, "tags=", cell_set_tags, 1);
  rb_define_method(cell, "core=", cell_set_core, 1);
  rb_define_method(cell, "idle", cell_idle, 0);
  rb_define_method(cell, "idle=", cell_set_idle, 1);
  rb_define_method(cell, "expired", cell_expired, 0);
  rb_define_method(cell, "expired=", cell_set_expired, 1);
  rb_define_method(cell, "removed", cell_removed, 0);
  rb_define_method(cell, "removed=", cell_set_removed, 1);
  rb_define_method(cell, "bound", cell_bound, 0);
  rb_define_method(cell, "bound=", cell_set_bound, 1);
  rb_define_method(cell, "abandoned?", cell_abandoned, 0);
  rb_define_method(cell, "reset", cell_reset, 0);

  VALUE counter = rb_define_class_under(native, "CounterCell", cell);
  rb_define_method(counter, "put", counter_put, 1);
  rb_define_method(counter, "take", counter_take, 0);
  VALUE gauge = rb_define_class_under(native, "GaugeCell", cell);
  rb_define_method(gauge, "put", gauge_put, 1);
  rb_define_method(gauge, "take", gauge_take, 0);
  rb_define_method(gauge, "value", cell_value, 0);
  rb_define_method(gauge, "stamp", cell_stamp, 0);
  VALUE samples = rb_define_class_under(native, "SampleCell", cell);
  rb_define_method(samples, "put", samples_put, 1);
  rb_define_method(samples, "take", samples_take, 0);

  VALUE calls = rb_define_module_under(native, "CounterCalls");
  rb_define_method(calls, "increment", handle_increment, -1);
  calls = rb_define_module_under(native, "GaugeCalls");
  rb_define_method(calls, "set", handle_set, 1);
  calls = rb_define_module_under(native, "SampleCalls");
  rb_define_method(calls, "record", handle_record, 1);

  VALUE shelf = rb_define_class_under(native, "Shelf", rb_cObject);
  rb_define_alloc_func(shelf, shelf_alloc);
  rb_define_method(shelf, "initialize", shelf_initialize, 1);
  rb_define_method(shelf, "put", shelf_put, 3);
  rb_define_method(shelf, "store", shelf_store, 3);
  rb_define_method(shelf, "sweep", shelf_sweep, 0);
  rb_define_method(shelf, "length", shelf_length, 0);
}
