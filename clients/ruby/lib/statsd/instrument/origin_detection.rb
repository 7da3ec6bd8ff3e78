# frozen_string_literal: true

module StatsD
  module Instrument
    # Finds out which container this process runs in, so that the server can add the container's tags.
    # Linux only; everywhere else nothing is found.
    class OriginDetection
      CONTAINER_ID = /([0-9a-f]{64}|[0-9a-f]{32}-\d+|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.scope)?\z/
      MOUNTED_CONTAINER_ID = /\A(?:[0-9a-f]{64}|[0-9a-f]{32}-\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){4})\z/
      # Inode of the initial cgroup namespace: a process in it is not in a container of its own.
      HOST_CGROUP_NAMESPACE_INODE = 0xEFFFFFFB
      private_constant :CONTAINER_ID, :MOUNTED_CONTAINER_ID, :HOST_CGROUP_NAMESPACE_INODE

      # @param root [String] where `/proc` and `/sys` are looked for
      def initialize(root: "/")
        @root = root
      end

      # @return [String, nil] a container id, or `in-<inode>` of the cgroup when the id is hidden
      def container_id
        id_from_cgroup || id_from_mounts || cgroup_inode
      end

      # @param text [String, nil] the value of `DD_EXTERNAL_ENV`
      # @return [String, nil] the text without unprintable characters and field separators
      def self.clean_external_data(text)
        return if text.nil?

        cleaned = Wire.utf8(text).gsub(/[^[:print:]]/, "").delete("|")
        cleaned unless cleaned.empty?
      end

      private

      def id_from_cgroup
        read("proc/self/cgroup").each_line(chomp: true) do |line|
          path = line.split(":", 3)[2]
          found = path && CONTAINER_ID.match(path)
          return found[1] if found
        end
        nil
      end

      # Container runtimes mount `<id>/hostname` into the container. Sandboxes are the pods' own
      # pause containers, which carry no tags.
      def id_from_mounts
        read("proc/self/mountinfo").each_line do |line|
          line.split.values_at(3, 4).compact.each do |path|
            id = id_from_mount(path.split("/"))
            return id if id
          end
        end
        nil
      end

      def id_from_mount(segments)
        return unless segments.last == "hostname"

        index = segments.rindex { |segment| MOUNTED_CONTAINER_ID.match?(segment) }
        segments[index] if index && (index.zero? || segments[index - 1] != "sandboxes")
      end

      def cgroup_inode
        return if inode("proc/self/ns/cgroup") == HOST_CGROUP_NAMESPACE_INODE

        controllers = {}
        read("proc/self/cgroup").each_line(chomp: true) do |line|
          _, controller, path = line.split(":", 3)
          controllers[controller] = path if path
        end
        ["memory", ""].each do |controller|
          path = controllers[controller] or next
          found = inode(File.join("sys/fs/cgroup", controller, path))
          return "in-#{found}" if found
        end
        nil
      end

      def read(path)
        File.read(File.join(@root, path))
      rescue SystemCallError, IOError
        ""
      end

      def inode(path)
        File.stat(File.join(@root, path)).ino
      rescue SystemCallError
        nil
      end
    end
  end
end
