#include "server/http/http_server.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <thread>
#include <vector>

#include "server/http/connection.h"
#include "server/http/listener.h"
#include "server/http/tls_context.h"

namespace fathom::http {
namespace {

// After an accept failed for lack of file descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

struct HttpServer::Impl {
  explicit Impl(HttpOptions options)
      : core(std::make_shared<Core>(std::move(options))),
        work(core->context.get_executor()),
        pause(core->context),
        workers(static_cast<size_t>(std::max(1, core->options.worker_threads))) {}

  void Accept();
  void OnAccept(ErrorCode error, Stream::Socket socket);
  // Runs `method` on the strand of every connection.
  void ForEachConnection(void (Connection::*method)());

  std::shared_ptr<Core> core;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::optional<Listener> listener;
  asio::steady_timer pause;
  asio::thread_pool workers;
  std::vector<std::thread> io_threads;
  std::once_flag stopped;
};

void HttpServer::Impl::Accept() {
  listener->acceptor.async_accept(
      asio::make_strand(core->context),
      [this](ErrorCode error, Stream::Socket socket) { OnAccept(error, std::move(socket)); });
}

void HttpServer::Impl::OnAccept(ErrorCode error, Stream::Socket socket) {
  Acceptor* const acceptor = &listener->acceptor;
  if (!acceptor->is_open()) return;
  if (error) {
    pause.expires_after(kAcceptPause);
    pause.async_wait(
        asio::bind_executor(acceptor->get_executor(), [this, acceptor](ErrorCode wait_error) {
          if (!wait_error && acceptor->is_open()) Accept();
        }));
    return;
  }
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(core->mutex);
    const bool full =
        core->connections.size() >= static_cast<size_t>(core->options.max_connections);
    // Over the limit the socket is closed at once; an answer would need a connection.
    if (!full && !core->draining) {
      const uint64_t id = core->next_id++;
      connection = std::make_shared<Connection>(core, id, std::move(socket));
      core->connections.emplace(id, connection);
    }
  }
  if (connection) connection->Run([connection] { connection->Start(); });
  Accept();
}

void HttpServer::Impl::ForEachConnection(void (Connection::*method)()) {
  std::vector<std::shared_ptr<Connection>> connections;
  {
    const std::lock_guard lock(core->mutex);
    for (const auto& [id, weak] : core->connections) {
      if (auto connection = weak.lock()) connections.push_back(std::move(connection));
    }
  }
  for (const auto& connection : connections) {
    connection->Post([connection, method] { (connection.get()->*method)(); });
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  FATHOM_CHECK(options.handler != nullptr, "an HttpServer needs a handler");
  FATHOM_CHECK(options.error_response != nullptr, "an HttpServer needs an error format");
  options.io_threads = std::max(1, options.io_threads);
  auto impl = std::make_unique<Impl>(std::move(options));
  FATHOM_ASSIGN_OR_RETURN(impl->core->tls, MakeTlsContext(impl->core->options.tls));
  FATHOM_ASSIGN_OR_RETURN(Listener listener, Listen(impl->core->context, impl->core->options));
  impl->listener.emplace(std::move(listener));
  Impl* raw = impl.get();
  asio::post(raw->listener->acceptor.get_executor(), [raw] { raw->Accept(); });
  for (int i = 0; i < raw->core->options.io_threads; ++i) {
    raw->io_threads.emplace_back([core = raw->core] {
      pthread_setname_np(pthread_self(), "fathom-http");
      core->context.run();
    });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->listener->address; }

int HttpServer::port() const { return impl_->listener->port; }

int HttpServer::num_connections() const {
  const std::lock_guard lock(impl_->core->mutex);
  return static_cast<int>(impl_->core->connections.size());
}

void HttpServer::PostWork(std::function<void()> task) {
  asio::post(impl_->workers, std::move(task));
}

void HttpServer::Drain() {
  {
    const std::lock_guard lock(impl_->core->mutex);
    if (std::exchange(impl_->core->draining, true)) return;
  }
  asio::post(impl_->listener->acceptor.get_executor(), [impl = impl_.get()] {
    // While it still listens nobody else takes the file's place, so it removes none but its own.
    impl->listener->file.reset();
    ErrorCode ignored;
    impl->listener->acceptor.close(ignored);
    impl->pause.cancel();
  });
  impl_->ForEachConnection(&Connection::Drain);
}

bool HttpServer::WaitUntilIdle(std::chrono::milliseconds timeout) {
  Core& core = *impl_->core;
  std::unique_lock lock(core.mutex);
  return core.idle.wait_for(lock, timeout, [&core] { return core.connections.empty(); });
}

void HttpServer::Stop() {
  std::call_once(impl_->stopped, [this] {
    Drain();
    impl_->ForEachConnection(&Connection::Close);
    impl_->workers.join();
    {
      Core& core = *impl_->core;
      std::unique_lock lock(core.mutex);
      core.idle.wait(lock, [&core] { return core.connections.empty(); });
    }
    impl_->work.reset();
    for (std::thread& thread : impl_->io_threads) thread.join();
  });
}

}  // namespace fathom::http
