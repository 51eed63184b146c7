package config

import (
	"strconv"
	"strings"
	"time"
)

// Images is how images get from clients to workers.
type Images struct {
	Way       string // url, kwargs, pixels
	Workers   int    // images decoded at a time; 0: as many as there are processors
	MaxPixels int    // of one image

	// How models' processors are run, by the name of the model; * is any other.
	Engine, Backend, Scale, DType map[string]string

	AllowInternal bool          // addresses that aren't public may be fetched from
	Domains       []string      // hosts that may be fetched from; empty: any
	LocalPath     string        // folder of file URLs; empty: there are none
	MaxDataURL    int64         // bytes
	MaxFile       int64         // bytes of a download or a file
	FetchTimeout  time.Duration // for all images of a request
	CacheGB       float64       // of downloads kept
	ItemCache     int64         // bytes of processed images kept

	Transfer        string        // shm; anything else is NIXL
	NoTransfer      bool          // by URL after all
	Library         string        // of NIXL; empty: it is looked for
	Python          string        // environment it is looked for in, too; may be empty
	PoolBytes       int64         // that transfers may hold
	PoolWait        time.Duration // for room in it
	CleanupTimeout  string        // seconds, as Dynamo takes them: see CleanupAfter
	ProgressDelayUS int64         // of NIXL's own thread
}

// Of returns what one of the settings by model says of a model.
func Of(setting map[string]string, model string) string {
	if v, ok := setting[model]; ok {
		return v
	}
	return setting["*"]
}

// ProgressDelay is how long NIXL's own thread pauses.
func (m *Images) ProgressDelay() time.Duration {
	return time.Duration(m.ProgressDelayUS) * time.Microsecond
}

// CleanupAfter is how long a worker has to read after the end of the answer. What isn't a positive number of seconds is
// Dynamo's default, a minute; ok is false then.
func (m *Images) CleanupAfter() (d time.Duration, ok bool) {
	s, err := strconv.ParseFloat(strings.TrimSpace(m.CleanupTimeout), 64)
	if err != nil || !(s > 0) || s > 1e6 {
		return time.Minute, false
	}
	return time.Duration(s * float64(time.Second)), true
}

// addImages lists how images get to workers.
func (t *table) addImages(m *Images) {
	t.group = "Images"
	t.add("mm-way", "PORTICO_MM_WAY", choice(&m.Way, "url", "url", "kwargs", "pixels"),
		"How images reach workers: as URLs; fetched and processed here, for workers that take tensors (vLLM's); or fetched and "+
			"decoded here and sent over NIXL, for workers whose card asks for that.")
	t.add("mm-engine-version", "PORTICO_MM_ENGINE_VERSION", pairs(&m.Engine),
		"Version of vLLM by model, such as *=0.31.0: it decides the form of tensors.")
	t.add("mm-image-backend", "PORTICO_MM_IMAGE_BACKEND", pairs(&m.Backend),
		"Whose resizing is followed, by model: torchvision (the default), pillow, or pillow12.")
	t.add("mm-image-scale", "PORTICO_MM_IMAGE_SCALE", pairs(&m.Scale),
		"Whether pixels are bytes or normalized, by model; the default follows architecture and engine version.")
	t.add("mm-image-dtype", "PORTICO_MM_IMAGE_DTYPE", pairs(&m.DType),
		"Type of pixels by model: uint8, float16, bfloat16 or float32; the default follows scale and model.")
	t.add("mm-workers", "PORTICO_MM_WORKERS", integer(&m.Workers, 0, 0, 1024),
		"Images that are decoded at a time; 0 is as many as there are processors, and at least two.")
	t.add("mm-max-pixels", "PORTICO_MM_MAX_PIXELS", integer(&m.MaxPixels, 178_956_970, 1, 1<<30),
		"Most pixels, width times height, that an image may have.")
	t.add("mm-allow-internal", "DYN_MM_ALLOW_INTERNAL", boolean(&m.AllowInternal, false),
		"Fetch images also from private, loopback and link-local addresses.")
	t.add("mm-allowed-domains", "PORTICO_MM_ALLOWED_DOMAINS", list(&m.Domains),
		"Hosts that images may be fetched from; *.name stands for all below name; empty for any.")
	t.add("mm-local-path", "DYN_MM_LOCAL_PATH", path(&m.LocalPath),
		"Folder whose files file URLs may name; without it there are no file URLs.")
	t.add("mm-max-data-url-mb", "DYN_MM_MAX_DATA_URL_MB", scaled(&m.MaxDataURL, 16, 1, 4096, 1<<20),
		"Largest image inside a request, in MiB.")
	t.add("mm-max-file-size-mb", "DYN_MM_MAX_FILE_SIZE_MB", scaled(&m.MaxFile, 64, 1, 4096, 1<<20),
		"Largest image that is downloaded or read from a file, in MiB.")
	t.add("mm-fetch-timeout-secs", "PORTICO_MM_FETCH_TIMEOUT_SECS",
		seconds(&m.FetchTimeout, 30*time.Second, time.Millisecond), "How long fetching the images of one request may take.")
	t.add("multimodal-loader-cache-gb", "DYN_MULTIMODAL_LOADER_CACHE_GB", number(&m.CacheGB, 0, 0, 1024),
		"GiB of downloaded images kept for later requests, as long as their servers allow; 0 keeps none.")
	t.add("mm-item-cache-mb", "PORTICO_MM_ITEM_CACHE_MB", scaled(&m.ItemCache, 256, 0, 1<<20, 1<<20),
		"MiB of processed images kept, so that one that comes again isn't processed again; 0 keeps none.")
	t.add("mm-transfer", "DYNAMO_MM_TRANSFER", text(&m.Transfer, "shm"),
		"How processed images are handed over: shm (shared memory), or nixl, which stands for any other word. Its transports "+
			"listen on all interfaces unless UCX_NET_DEVICES says otherwise.")
	t.add("disable-nixl-mm", "DYNAMO_DISABLE_NIXL_MM", boolean(&m.NoTransfer, false),
		"Hand nothing over: images travel as URLs.")
	t.add("mm-pool-bytes", "PORTICO_MM_POOL_BYTES", integer(&m.PoolBytes, 1<<30, 1<<20, 1<<50),
		"Bytes that processed images may take until workers have read them, in registered memory and in shared memory: each.")
	t.add("mm-pool-wait-ms", "PORTICO_MM_POOL_WAIT_MS", milliseconds(&m.PoolWait, 250*time.Millisecond, time.Millisecond),
		"How long a request waits for room among them before its images go another way.")
	t.add("mm-nixl-cleanup-timeout-s", "DYN_MM_NIXL_CLEANUP_TIMEOUT_S", text(&m.CleanupTimeout, "60"),
		"Seconds that a worker has to read images after the end of the answer. What isn't above 0 means 60.")
	t.add("mm-nixl-progress-delay-us", "DYN_MM_NIXL_PROGRESS_DELAY_US", integer(&m.ProgressDelayUS, 1000, 1, 1_000_000),
		"Microseconds between two rounds of NIXL's own thread.")
	t.add("nixl-library", "PORTICO_NIXL_LIBRARY", path(&m.Library),
		"NIXL's libnixl_capi.so; without it the usual places are looked at.")
	t.add("nixl-python-env", "VIRTUAL_ENV", path(&m.Python), "Python environment to look for it in, too.")
}
